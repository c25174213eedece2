"""Loading onto a GPU: everything but the slots first, run once and measured; what the budget has left goes to slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from hotset.engine.cuda import address_of, driver_library, free_before_context
from hotset.engine.device import DeviceModel, DeviceRunner
from hotset.engine.memory import MIB, DeviceNeeds, MemoryPlan, device_plan, kv_bytes
from hotset.errors import PlacementError
from hotset.experts.bank import ExpertBank, device_address
from hotset.experts.cache import ExpertCache
from hotset.experts.policy import Policy
from hotset.kernels.tuning import TENSOR_CORES_FROM, has_tensor_cores
from hotset.model.device_ops import DevicePlace
from hotset.model.loading import load_weights

if TYPE_CHECKING:
    from hotset.engine.loading import Source
    from hotset.model.config import ModelConfig

# Left free for what no dry run shows: other programs' windows, the allocator's rounding. Filling VRAM to the last megabyte is slow.
RESERVE = 256 * MIB
RESERVE_SHARE = 0.02
# What a prompt's chunk may take of the budget: its buffers are idle while decoding.
CHUNK_SHARE = 0.05
MAX_CHUNK_ROWS = 4096
MIN_CHUNK_ROWS = 256

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """Bytes of VRAM that this process may hold, and what was free before it took any (its CUDA context included)."""

    n_bytes: int
    free_before: int
    device: torch.device

    def used(self) -> int:
        """Bytes taken since, as the driver sees it."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return self.free_before - torch.cuda.mem_get_info(self.device)[0]

    @property
    def reserve(self) -> int:
        return max(RESERVE, int(self.n_bytes * RESERVE_SHARE))


def load_cuda(source: Source) -> tuple[DeviceRunner, MemoryPlan]:
    """The runner of a checked file on the current CUDA device, and its memory table."""
    budget = _budget(source.options.vram_bytes)
    context = budget.used()
    bank = ExpertBank(source.spans, source.config.n_experts)
    source.fill(bank)
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    bank.page_lock(runtime, lambda done: source.progress("page-locking", done, bank.n_bytes))
    return _out_of_memory_is_named(lambda: _place(source, bank, budget, context))


def _budget(asked: int | None) -> Budget:
    before = free_before_context()
    torch.cuda.init()  # type: ignore[no-untyped-call]
    device = torch.device("cuda", torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info(device)
    available = max(free, before.get(address_of(torch.cuda.get_device_properties(device)), free))
    n_bytes = min(available, asked or available)
    torch.cuda.set_per_process_memory_fraction(min(1.0, n_bytes / total), device)
    return Budget(n_bytes, available, device)


def _place(source: Source, bank: ExpertBank, budget: Budget, context: int) -> tuple[DeviceRunner, MemoryPlan]:
    """Weights, buffers and captured steps onto the device; then as many slots as there is room for."""
    config, device = source.config, budget.device
    weights = load_weights(source.tensors, config, source.spans, DevicePlace(device))
    weight_bytes = budget.used() - context
    shift = device_address(bank.base[0], driver_library()) - bank.base[0]
    no_slots = source.shape((0,) * len(source.spans))
    cache = ExpertCache(
        no_slots,
        Policy.parse(source.options.policy),
        [base + shift for base in bank.base],
        device,
        ring_steps=source.options.record_steps,
    )
    model = DeviceModel(config, weights, bank, cache, device)
    rows = source.options.n_ubatch or chunk_rows(config, budget.n_bytes)
    if not has_tensor_cores(device):
        rows = 0
    types = source.options.kv_types
    runner = DeviceRunner(
        model,
        source.n_ctx,
        use_graphs=source.options.graph,
        chunk_rows=min(rows, source.n_ctx),
        kv_types=types,
    )
    source.progress("kernels", 0, 1)
    runner.warm_up()
    source.progress("kernels", 1, 1)
    kv = kv_bytes(config, source.n_ctx, 1, types)
    used = budget.used()
    needs = DeviceNeeds(
        context=context,
        weights=weight_bytes,
        kv=kv,
        scratch=used - context - weight_bytes - kv - no_slots.overflow_bytes,
        overflow=no_slots.overflow_bytes,
        reserve=budget.reserve,
        kv_note=str(types),
    )
    plan = device_plan(config, source.spans, needs, source.options.size, budget.n_bytes)
    cache.resize(plan.n_slots)
    runner.reset_stats()
    return runner, plan


def prompt_notes(runner: DeviceRunner) -> list[str]:
    """What the user should be told of how prompts run."""
    needed = ".".join(map(str, TENSOR_CORES_FROM))
    note = f"prompts run eight tokens at a time: this GPU's tensor cores cannot be used (compute capability {needed} is needed)"
    return [note] if runner.chunks is None else []


def chunk_rows(config: ModelConfig, budget: int) -> int:
    """Rows of a prompt's chunk: as many as a small part of the VRAM has room for; more rows read the experts fewer times."""
    attention = 2 * (config.n_heads + config.n_kv_heads) * config.d_head
    per_pair = config.d_expert + config.d_model
    per_row = 4 * (3 * config.d_model + 2 * attention) + 2 * config.n_picks * per_pair
    rows = MAX_CHUNK_ROWS
    while rows > MIN_CHUNK_ROWS and rows * per_row > budget * CHUNK_SHARE:
        rows //= 2
    return rows


def _out_of_memory_is_named(work: Callable[[], T]) -> T:
    try:
        return work()
    except torch.cuda.OutOfMemoryError as error:
        raise PlacementError(
            f"the GPU ran out of memory while loading ({error}); "
            "lower --ctx-size or --expert-cache, raise --vram, or use --device cpu"
        ) from error
