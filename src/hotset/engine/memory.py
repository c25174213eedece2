"""What goes where and how much it takes: the memory table, and the slots that a budget leaves room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from hotset.errors import InputError, PlacementError
from hotset.experts.slots import CacheSize
from hotset.host.ram import available_bytes
from hotset.model.kv import DEFAULT, KVTypes

if TYPE_CHECKING:
    from hotset.experts.slots import CacheShape
    from hotset.model.config import ModelConfig
    from hotset.quant.layout import SpanLayout

GIB = 1 << 30
MIB = 1 << 20
Where = Literal["host", "gpu"]
# Where nothing is cached the size only says what to count; a quarter is what small cards hold of today's models.
COUNTED_SIZE = CacheSize.parse("25%")
# Left free for what no dry run shows: other programs' windows, the logits of many rows at once. Filling VRAM to the last megabyte is slow.
RESERVE = 256 * MIB
RESERVE_SHARE = 0.02
# What a prompt's chunk may take of the budget: its buffers are idle while decoding.
CHUNK_SHARE = 0.05
MAX_CHUNK_ROWS = 4096
MIN_CHUNK_ROWS = 256
# All slots are one allocation: the allocator takes 20 MiB for less than 10 and whole pages of 2 MiB for more.
SLOT_ROUNDING = 20 * MIB


@dataclass(frozen=True)
class MemoryRow:
    """One use of memory: `name`, where it lies, bytes, and why it is that large."""

    name: str
    where: Where
    n_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Usage:
    """What this process holds on the GPU, in bytes: all of it as the driver counts, what torch's allocator took, and what that handed out."""

    driver: int
    reserved: int
    allocated: int

    @property
    def context(self) -> int:
        """Taken past the allocator: the CUDA context, machine code, captured steps."""
        return self.driver - self.reserved

    @property
    def rounding(self) -> int:
        """Taken by the allocator and not handed out: it takes whole blocks."""
        return self.reserved - self.allocated


@dataclass(frozen=True)
class MemoryPlan:
    """All uses of memory; `budget` is what the GPU may hold in all and `usage` what it held once loaded, None on the CPU."""

    rows: tuple[MemoryRow, ...]
    n_slots: tuple[int, ...]
    budget: int | None = None
    usage: Usage | None = None

    def total(self, where: Where) -> int:
        return sum(r.n_bytes for r in self.rows if r.where == where)

    @property
    def room(self) -> int:
        """Bytes of the budget that nothing takes; 0 without a budget."""
        return 0 if self.budget is None else self.budget - self.total("gpu")

    def bytes_of(self, name: str) -> int:
        return sum(r.n_bytes for r in self.rows if r.name == name)

    def resized(self, size: CacheSize, shape: CacheShape) -> MemoryPlan:
        """The plan with an expert cache of another size; PlacementError where it does not fit."""
        if self.budget is None:
            return replace(self, n_slots=counted_slots(size, shape.span_bytes, shape.n_experts))
        room = self.room + self.bytes_of("slots")
        n_slots, n_bytes = fitting_slots(size, shape.span_bytes, shape.n_experts, room, self.budget)
        note = slots_note(n_slots, max(shape.n_experts, default=0))
        rows = tuple(replace(r, n_bytes=n_bytes, note=note) if r.name == "slots" else r for r in self.rows)
        return replace(self, rows=rows, n_slots=n_slots)


def kv_bytes(config: ModelConfig, n_ctx: int, n_seqs: int, types: KVTypes = DEFAULT) -> int:
    """Bytes of keys, values, latents and states (which are float32)."""
    return n_seqs * (n_ctx * types.position_bytes(config) + config.state_elements * 4)


def reserve_bytes(budget: int) -> int:
    """What of `budget` bytes of VRAM stays free."""
    return max(RESERVE, int(budget * RESERVE_SHARE))


def chunk_row_bytes(config: ModelConfig) -> int:
    """About what a row of a prompt's chunk takes on the GPU."""
    attention = 2 * (config.n_heads + config.n_kv_heads) * config.d_head
    per_pair = config.d_expert + config.d_model
    return 4 * (3 * config.d_model + 2 * attention) + 2 * config.n_picks * per_pair


def chunk_rows(config: ModelConfig, budget: int) -> int:
    """Rows of a prompt's chunk: as many as a small part of the VRAM has room for; more rows read the experts fewer times."""
    rows = MAX_CHUNK_ROWS
    while rows > MIN_CHUNK_ROWS and rows * chunk_row_bytes(config) > budget * CHUNK_SHARE:
        rows //= 2
    return rows


def checked_ctx(n_ctx: int) -> int:
    """The context asked for; InputError where it is no integer of at least 2."""
    if isinstance(n_ctx, bool) or not isinstance(n_ctx, int) or n_ctx < 2:
        raise InputError(f"the context (n_ctx, --ctx-size) must be at least 2 tokens, not {n_ctx!r}")
    return n_ctx


def check_host_room(n_ctx: int, kv: int) -> None:
    """PlacementError where the keys and values, `kv` bytes, do not fit what host memory is left."""
    room = available_bytes()
    if kv > room:
        raise PlacementError(
            f"keys and values of {n_ctx} tokens need {kv / GIB:.1f} GiB of host memory and {room / GIB:.1f} GiB are available; "
            "lower --ctx-size (n_ctx) or close other programs"
        )


def slots_note(n_slots: Sequence[int], n_experts: int) -> str:
    """As in "32 of 128 experts per layer"."""
    if not n_slots:
        return "no experts"
    low, high = min(n_slots), max(n_slots)
    return f"{low if low == high else f'{low} to {high}'} of {n_experts} experts per layer"


def counted_slots(size: CacheSize, span_bytes: Sequence[int], n_experts: Sequence[int]) -> tuple[int, ...]:
    """Slots of each layer of a cache that is only counted."""
    return (COUNTED_SIZE if size.kind == "auto" else size).n_slots(span_bytes, n_experts)


def fitting_slots(
    size: CacheSize, span_bytes: Sequence[int], n_experts: Sequence[int], room: int, budget: int
) -> tuple[tuple[int, ...], int]:
    """Slots of each layer and their bytes; PlacementError where `room`, what `budget` leaves for them, is too small."""
    n_slots = size.n_slots(span_bytes, n_experts, room)
    n_bytes = sum(n * b for n, b in zip(n_slots, span_bytes, strict=True))
    if n_bytes > room:
        raise PlacementError(
            f"the expert cache asked for needs {n_bytes / GIB:.2f} GiB and {room / GIB:.2f} GiB are left of {budget / GIB:.2f} GiB; "
            "use --expert-cache auto or a smaller size"
        )
    return n_slots, n_bytes


def host_plan(
    config: ModelConfig,
    spans: Sequence[SpanLayout],
    weights: int,
    kv: int,
    n_slots: tuple[int, ...],
    kv_note: str = "f16",
) -> MemoryPlan:
    """The CPU's table: the cache's slots cost nothing, for the cache is only counted."""
    experts = sum(s.n_bytes for s in spans) * config.n_experts
    rows = (
        MemoryRow("weights", "host", weights, "attention, norms, routers, embedding, output"),
        MemoryRow("experts", "host", experts, f"{len(spans)} layers of {config.n_experts}"),
        MemoryRow("KV cache", "host", kv, kv_note),
    )
    return MemoryPlan(rows, n_slots)


@dataclass(frozen=True)
class DeviceNeeds:
    """What the GPU must hold beside slots, in bytes; `reserve` stays free."""

    context: int
    weights: int
    kv: int
    scratch: int
    overflow: int
    odds: int
    rounding: int
    reserve: int
    kv_note: str = "f16"

    @property
    def total(self) -> int:
        held = self.context + self.weights + self.kv + self.scratch + self.overflow + self.odds + self.rounding
        return held + self.reserve

    @staticmethod
    def measured(
        usage: Usage, *, weights: int, kv: int, overflow: int, odds: int, reserve: int, kv_note: str = "f16"
    ) -> DeviceNeeds:
        """What a dry run without slots came to hold; `weights`, `kv`, `overflow` and `odds` are their part of what was handed out."""
        return DeviceNeeds(
            context=usage.context,
            kv_note=kv_note,
            weights=weights,
            kv=kv,
            scratch=usage.allocated - weights - kv - overflow - odds,
            overflow=overflow,
            odds=odds,
            rounding=usage.rounding + SLOT_ROUNDING,
            reserve=reserve,
        )


def device_plan(
    config: ModelConfig,
    spans: Sequence[SpanLayout],
    needs: DeviceNeeds,
    size: CacheSize,
    budget: int,
    *,
    page_locked: int | None = None,
) -> MemoryPlan:
    """Slots for `size` within `budget` bytes of VRAM; PlacementError where the rest, or the size asked for, does not fit.

    `page_locked` bytes of the experts are, None for all of them.
    """
    span_bytes = [s.n_bytes for s in spans]
    room = budget - needs.total
    if room < 0:
        raise PlacementError(
            f"the GPU may hold {budget / GIB:.2f} GiB, and without a single expert {needs.total / GIB:.2f} GiB are needed "
            f"(weights {needs.weights / GIB:.2f}, KV cache {needs.kv / GIB:.2f}, overflow {needs.overflow / GIB:.2f}, "
            f"reserve {needs.reserve / GIB:.2f}); lower --ctx-size, raise --vram, or run with --device cpu"
        )
    n_slots, slots = fitting_slots(size, span_bytes, [config.n_experts] * len(span_bytes), room, budget)
    experts = sum(span_bytes) * config.n_experts
    locked = experts if page_locked is None else page_locked
    rows = (
        MemoryRow("CUDA context", "gpu", needs.context, "the driver's own, kernels and captured steps"),
        MemoryRow("weights", "gpu", needs.weights, "attention, norms, routers, embedding, output"),
        MemoryRow("KV cache", "gpu", needs.kv, needs.kv_note),
        MemoryRow("scratch", "gpu", needs.scratch, "activations and logits"),
        MemoryRow("overflow", "gpu", needs.overflow, "misses that find no slot"),
        MemoryRow("odds", "gpu", needs.odds, "which expert follows which, to bring experts ahead"),
        MemoryRow("rounding", "gpu", needs.rounding, "the allocator takes whole blocks"),
        MemoryRow("slots", "gpu", slots, slots_note(n_slots, config.n_experts)),
        MemoryRow("reserve", "gpu", needs.reserve, "left free"),
        MemoryRow(
            "experts", "host", experts, "page-locked" if locked == experts else f"{locked / GIB:.1f} GiB page-locked"
        ),
    )
    return MemoryPlan(rows, n_slots, budget)


def with_slots(
    plan: MemoryPlan, n_slots: tuple[int, ...], spans: Sequence[SpanLayout], config: ModelConfig
) -> MemoryPlan:
    """The plan with other slots per layer, which take no more bytes."""
    n_bytes = sum(n * s.n_bytes for n, s in zip(n_slots, spans, strict=True))
    note = slots_note(n_slots, config.n_experts)
    rows = tuple(replace(r, n_bytes=n_bytes, note=note) if r.name == "slots" else r for r in plan.rows)
    return replace(plan, rows=rows, n_slots=n_slots)
