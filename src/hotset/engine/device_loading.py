"""Loading onto a GPU: weights first, then what is left of the budget goes to slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from hotset.engine.cuda import address_of, driver_library, free_before_context
from hotset.engine.device import DeviceModel, DeviceRunner
from hotset.engine.memory import MIB, DeviceNeeds, MemoryPlan, device_plan, kv_bytes
from hotset.errors import PlacementError, UnsupportedError
from hotset.experts.bank import ExpertBank, device_address
from hotset.experts.cache import ExpertCache
from hotset.experts.policy import Policy
from hotset.model.device_ops import DevicePlace
from hotset.model.weights import Weights, load_weights

if TYPE_CHECKING:
    from hotset.engine.loading import Source

# Left free for compiled kernels, transients of sampling and the allocator's rounding.
RESERVE = 384 * MIB
# float32 results of 8 rows: the logits twice (product, sampling keys and their order) and all activations of a layer.
LOGIT_COPIES = 4


def load_cuda(source: Source) -> tuple[DeviceRunner, MemoryPlan]:
    """The runner of a checked file on the current CUDA device, and its memory table."""
    if source.config.d_model % 16:
        raise UnsupportedError(
            source.file.path,
            "embedding_length",
            f"{source.config.d_model} is no multiple of 16, which the GPU kernels want",
            value=source.config.d_model,
            hint="run with --device cpu",
        )
    before = free_before_context()
    torch.cuda.init()  # type: ignore[no-untyped-call]
    device = torch.device("cuda", torch.cuda.current_device())
    free, _total = torch.cuda.mem_get_info(device)
    available = before.get(address_of(torch.cuda.get_device_properties(device)), free)
    budget = min(available, source.options.vram_bytes or available)
    weights = _out_of_memory_is_named(
        lambda: load_weights(source.tensors, source.config, source.spans, DevicePlace(device))
    )
    plan = device_plan(source.config, source.spans, _needs(source, available - free), source.options.size, budget)
    bank = ExpertBank(source.spans, source.config.n_experts)
    source.fill(bank)
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    bank.page_lock(runtime, lambda done: source.progress("page-locking", done, bank.n_bytes))
    return _out_of_memory_is_named(lambda: _runner(source, plan, weights, bank, device)), plan


def _needs(source: Source, context: int) -> DeviceNeeds:
    config = source.config
    widths = config.n_vocab * LOGIT_COPIES + (config.d_model + config.n_heads * config.d_head) * 16
    widths += config.n_picks * (config.d_expert + config.d_model) * 4
    return DeviceNeeds(
        context=context,
        weights=torch.cuda.memory_allocated(),
        kv=kv_bytes(config, source.n_ctx, 1, 2),
        scratch=widths * 8 * 4,
        overflow=source.shape((0,) * config.n_layers).overflow_bytes,
        reserve=RESERVE,
    )


def _runner(source: Source, plan: MemoryPlan, weights: Weights, bank: ExpertBank, device: torch.device) -> DeviceRunner:
    shift = device_address(bank.base[0], driver_library()) - bank.base[0]
    cache = ExpertCache(
        source.shape(plan.n_slots),
        Policy.parse(source.options.policy),
        [base + shift for base in bank.base],
        device,
        ring_steps=source.options.record_steps,
    )
    return DeviceRunner(DeviceModel(source.config, weights, bank, cache, device), source.n_ctx)


T = TypeVar("T")


def _out_of_memory_is_named(work: Callable[[], T]) -> T:
    try:
        return work()
    except torch.cuda.OutOfMemoryError as error:
        raise PlacementError(
            f"the GPU ran out of memory while loading ({error}); lower --ctx-size or --expert-cache, or use --device cpu"
        ) from error
