"""Loading onto a GPU: everything but the slots first, run once and measured; what the budget has left goes to slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from hotset.engine.cuda import CudaLocker, address_of, driver_library, free_before_context, host_call
from hotset.engine.device import DeviceModel, DeviceRunner
from hotset.engine.filling import Filling
from hotset.engine.memory import MIB, DeviceNeeds, MemoryPlan, Usage, chunk_rows, device_plan, kv_bytes, reserve_bytes
from hotset.engine.nvml import state_of
from hotset.engine.page_locking import page_lock, relay_for
from hotset.engine.room import keep_reserve
from hotset.errors import PlacementError
from hotset.experts.bank import ExpertBank
from hotset.experts.cache import ExpertCache
from hotset.experts.policy import Policy
from hotset.kernels.prefetch import launch_for
from hotset.kernels.tuning import TENSOR_CORES_FROM, has_tensor_cores
from hotset.model.batch import MAX_ROWS
from hotset.model.device_place import DevicePlace
from hotset.model.device_support import prompts_in_chunks
from hotset.model.loading import load_weights

if TYPE_CHECKING:
    from hotset.engine.loading import Source


T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """Bytes of VRAM that an engine may hold, its CUDA context included, and how things stood before it took any."""

    n_bytes: int
    free_before: int
    device: torch.device
    reserved_before: int = 0
    allocated_before: int = 0

    def usage(self) -> Usage:
        """What was taken since, once the allocator has handed back what it keeps in store."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device) - self.reserved_before
        allocated = torch.cuda.memory_allocated(self.device) - self.allocated_before
        return Usage(self.free_before - free, reserved, allocated)

    def bound(self, usage: Usage) -> None:
        """Hold the allocator to what the budget leaves beside the context: it fails first, and then slots are given back."""
        _, total = torch.cuda.mem_get_info(self.device)
        share = max(0.0, (self.reserved_before + self.n_bytes - usage.context) / total)
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), self.device)

    @property
    def reserve(self) -> int:
        return reserve_bytes(self.n_bytes)


def load_cuda(source: Source) -> tuple[DeviceRunner, MemoryPlan, list[str]]:
    """The runner of a checked file on the current CUDA device, its memory table, and what the user should be told."""
    budget = _budget(source.options.vram_bytes)
    bank = ExpertBank(source.spans, source.config.n_experts)
    locker, n_spans = CudaLocker(driver_library()), MAX_ROWS * source.config.n_picks
    limit = source.options.page_lock_bytes

    def lock(ready: Callable[[int], None]) -> str | None:
        return page_lock(
            bank, locker, limit, n_spans, lambda done: source.progress("page-locking", done, bank.n_bytes), ready
        )

    with Filling(lambda gauge: source.fill(bank, gauge), lock) as filling:
        return _out_of_memory_is_named(lambda: _place(source, bank, budget, filling))


def _budget(asked: int | None) -> Budget:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()  # what an engine before this one left
    before = free_before_context()
    torch.cuda.init()  # type: ignore[no-untyped-call]
    device = torch.device("cuda", torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info(device)
    available = max(free, before.get(address_of(torch.cuda.get_device_properties(device)), free))
    n_bytes = min(available, asked or available)
    held = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    budget = Budget(n_bytes, available, device, *held)
    budget.bound(budget.usage())
    return budget


def _place(
    source: Source, bank: ExpertBank, budget: Budget, filling: Filling
) -> tuple[DeviceRunner, MemoryPlan, list[str]]:
    """Weights, buffers and captured steps onto the device while the bank is being filled; then as many slots as there is room for."""
    config, device = source.config, budget.device
    weights = load_weights(source.tensors, config, source.spans, DevicePlace(device))
    weight_bytes = budget.usage().allocated
    gpu = state_of(device)
    no_slots = source.shape((0,) * len(source.spans))
    cache = ExpertCache(
        no_slots,
        Policy.parse(source.options.policy),
        bank.base,
        device,
        ring_steps=source.options.ring_steps,
        prefetch=launch_for(gpu.bus_rate if gpu else None) if source.options.prefetch else None,
    )
    model = DeviceModel(config, weights, bank, cache, device)
    rows = source.options.n_ubatch or chunk_rows(config, budget.n_bytes)
    if not has_tensor_cores(device) or not prompts_in_chunks(config, source.tensors):
        rows = 0
    types = source.options.kv_types
    runner = DeviceRunner(
        model,
        source.n_ctx,
        use_graphs=source.options.graph,
        chunk_rows=min(rows, source.n_ctx),
        kv_types=types,
        n_seqs=source.options.n_parallel,
    )
    source.progress("kernels", 0, 1)
    runner.compile()
    source.progress("kernels", 1, 1)
    note = filling.finish()
    relay = relay_for(bank, MAX_ROWS * config.n_picks, host_call(driver_library()) if bank.bounce else None)
    cache.attach([base + bank.shift for base in bank.base], relay)
    runner.warm_up()
    needs = DeviceNeeds.measured(
        budget.usage(),
        weights=weight_bytes,
        kv=kv_bytes(config, source.n_ctx, max(1, source.options.n_parallel), types),
        overflow=no_slots.overflow_bytes,
        odds=no_slots.odds_bytes if source.options.prefetch else 0,
        reserve=budget.reserve,
        kv_note=str(types),
    )
    plan = device_plan(config, source.spans, needs, source.options.size, budget.n_bytes, page_locked=bank.locked_bytes)
    plan, notes = fill_room(cache, source.dealt(plan), budget)
    runner.reset_stats()
    if not source.options.graph:
        notes.append(
            "steps are not captured, as asked: the host starts each kernel of each token by itself, and a start takes six times as long"
        )
    return runner, plan, [note, *notes] if note else notes


def prompt_notes(runner: DeviceRunner) -> list[str]:
    """What the user should be told of how prompts run."""
    if runner.chunks is not None:
        return []
    needed = ".".join(map(str, TENSOR_CORES_FROM))
    why = f"this GPU's tensor cores cannot be used (compute capability {needed} is needed)"
    if has_tensor_cores(runner.model.device):
        why = "the kernels for whole prompts do not know this kind of model yet"
    return [f"prompts run eight tokens at a time: {why}"]


class Measured(Protocol):
    """A budget that can tell what is held of it."""

    @property
    def n_bytes(self) -> int: ...

    @property
    def reserve(self) -> int: ...

    def usage(self) -> Usage: ...

    def bound(self, usage: Usage) -> None: ...


def fill_room(cache: ExpertCache, plan: MemoryPlan, budget: Measured) -> tuple[MemoryPlan, list[str]]:
    """Make the planned slots and check the table against the driver: what is held beyond the plan is taken off the slots, and said."""
    cache.resize(plan.n_slots)
    freed = keep_reserve(cache, lambda: budget.usage().driver - (budget.n_bytes - budget.reserve))
    usage = budget.usage()
    budget.bound(usage)
    if not freed:
        return replace(plan, usage=usage), []
    note = f"the GPU holds more than was planned: the expert cache gave back {freed // MIB:,} MiB of its slots"
    slots = cache.shape.slot_bytes
    rows = tuple(replace(row, n_bytes=slots) if row.name == "slots" else row for row in plan.rows)
    return replace(plan, rows=rows, n_slots=cache.shape.n_slots, usage=usage), [note]


def _out_of_memory_is_named(work: Callable[[], T]) -> T:
    try:
        return work()
    except torch.cuda.OutOfMemoryError as error:
        raise PlacementError(
            f"the GPU ran out of memory while loading ({error}); "
            "lower --ctx-size or --expert-cache, raise --vram, or use --device cpu"
        ) from error
