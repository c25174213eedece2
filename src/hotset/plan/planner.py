"""What a model will need, what goes where, how fast it will decode, and which card and memory would do: from its header alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.engine.loading import DEFAULT_CTX
from hotset.engine.memory import (
    GIB,
    MIB,
    DeviceNeeds,
    MemoryPlan,
    checked_ctx,
    chunk_row_bytes,
    chunk_rows,
    device_plan,
    host_plan,
    kv_bytes,
    reserve_bytes,
)
from hotset.errors import InputError, PlacementError
from hotset.experts.slots import CacheShape, CacheSize
from hotset.model import model_config
from hotset.model.batch import MAX_ROWS
from hotset.model.device_support import missing_on_device
from hotset.model.experts import expert_layouts
from hotset.model.kv import DEFAULT, KVTypes
from hotset.model.tensors import Tensors
from hotset.plan.forecast import Band, Work, cpu_band, decode_band, step_s
from hotset.plan.hit_rate import expected_hit_rate
from hotset.plan.traffic import Traffic, traffic

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile
    from hotset.model.config import ModelConfig
    from hotset.plan.forecast import Rates
    from hotset.plan.hardware import Machine
    from hotset.plan.hit_rate import HitRate
    from hotset.quant.layout import SpanLayout

HitRates = Callable[[Sequence[int]], "HitRate"]
# Not known before a GPU is asked: a CUDA context takes 0.3-0.6 GiB, activations little beside the logits.
ASSUMED_CONTEXT = 512 * MIB
# The decode step's buffers and the two that experts stream through; those of a prompt's chunk come on top.
ASSUMED_SCRATCH = 128 * MIB
ASSUMED_ROUNDING = 32 * MIB
# What the program itself, the driver and the page tables of the bank take of host memory; twice that for the system.
PROGRAM_BYTES = 2 * GIB
CARDS_GIB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141)
MEMORIES_GIB = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
# A curve that is off its straight line by no more than this share of its height has no knee.
STRAIGHT = 0.01
# Sizes of the cache at which the curve is drawn.
N_POINTS = 16


@dataclass(frozen=True)
class PlannedModel:
    """A model as its header describes it, and how its keys and values are to be kept."""

    config: ModelConfig
    spans: tuple[SpanLayout, ...]
    reads: Traffic
    kv_types: KVTypes = DEFAULT

    @classmethod
    def of(cls, file: ModelFile, kv_types: KVTypes = DEFAULT) -> PlannedModel:
        """Read and check a header; UnsupportedError or FileError where hotset cannot run the model."""
        config = model_config(file.metadata)
        kv_types.check(config)
        spans = expert_layouts(Tensors(file), config)
        file.tensor("token_embd.weight")
        return cls(config, spans, traffic(file, config, spans), kv_types)

    @property
    def span_bytes(self) -> tuple[int, ...]:
        return tuple(s.n_bytes for s in self.spans)

    @property
    def work(self) -> Work:
        return Work.of(self.config, self.reads, self.span_bytes)

    @property
    def default_ctx(self) -> int:
        return min(DEFAULT_CTX, self.config.n_ctx_train)


@dataclass(frozen=True)
class Point:
    """A size of the expert cache: slots per layer, the VRAM that all takes with it, the hit rate and milliseconds per token to expect."""

    n_slots: tuple[int, ...]
    fraction: float
    vram_bytes: int
    hit_rate: float
    ms: float


@dataclass(frozen=True)
class Plan:
    """The answer. `memory` is the engine's own table; `hit_rate` and `points` are empty for a dense model or on the CPU.

    `knee` is the point from which more slots gain less than before; `card_gib` is the smallest card that runs the model at all, `good_card_gib`
    the smallest that reaches the knee, `ram_gib` the smallest host memory; None where none of the usual ones does.
    """

    model: PlannedModel
    n_ctx: int
    memory: MemoryPlan
    hit_rate: HitRate | None
    speed: Band | None
    points: tuple[Point, ...]
    knee: Point | None
    card_gib: int | None
    good_card_gib: int | None
    ram_gib: int | None
    notes: tuple[str, ...]


def estimated_needs(model: PlannedModel, n_ctx: int, budget: int) -> DeviceNeeds:
    """What the GPU must hold beside slots. The engine measures context, weights and scratch where it runs; here they are estimates."""
    config = model.config
    n = len(model.spans)
    shape = CacheShape(model.span_bytes, (config.n_experts,) * n, (0,) * n, config.n_picks, MAX_ROWS)
    rows = min(chunk_rows(config, budget), n_ctx)
    return DeviceNeeds(
        context=ASSUMED_CONTEXT,
        weights=model.reads.dense,
        kv=kv_bytes(config, n_ctx, 1, model.kv_types),
        scratch=ASSUMED_SCRATCH + MAX_ROWS * config.n_vocab * 4 + rows * chunk_row_bytes(config),
        overflow=shape.overflow_bytes,
        odds=shape.odds_bytes,
        rounding=ASSUMED_ROUNDING,
        reserve=reserve_bytes(budget),
        kv_note=str(model.kv_types),
    )


def plan_gpu(
    model: PlannedModel,
    rates: Rates,
    budget: int,
    *,
    ram: int | None = None,
    n_ctx: int | None = None,
    size: CacheSize | None = None,
    hit_rates: HitRates | None = None,
) -> Plan:
    """A plan for a GPU that may hold `budget` bytes; PlacementError where not even an empty cache fits.

    `hit_rates` gives the hit rate of slots per layer (default: the fitted curve); `ram` is the host memory there is.
    """
    n_ctx = model.default_ctx if n_ctx is None else checked_ctx(n_ctx)
    config = model.config
    known = hit_rates or (lambda slots: expected_hit_rate(slots, config.n_experts, config.n_picks))
    needs = estimated_needs(model, n_ctx, budget)
    memory = device_plan(config, model.spans, needs, size or CacheSize.parse("auto"), budget)
    hit_rate = known(memory.n_slots) if model.spans else None
    rate_band = hit_rate.all if hit_rate else (1.0, 1.0, 1.0)
    points = curve_points(model, rates, n_ctx, known)
    knee = knee_of(points)
    return Plan(
        model=model,
        n_ctx=n_ctx,
        memory=memory,
        hit_rate=hit_rate,
        speed=decode_band(model.work, rates, rate_band),
        points=points,
        knee=knee,
        card_gib=smallest_card(model, n_ctx, 0),
        good_card_gib=smallest_card(model, n_ctx, slot_bytes(model, knee.n_slots) if knee else 0),
        ram_gib=smallest_ram(memory.total("host")),
        notes=tuple(gpu_notes(model, memory, ram, n_ctx)),
    )


def plan_cpu(model: PlannedModel, machine: Machine | None, *, ram: int | None = None, n_ctx: int | None = None) -> Plan:
    """A plan for the CPU; the speed only where its memory was measured."""
    n_ctx = model.default_ctx if n_ctx is None else checked_ctx(n_ctx)
    kv = kv_bytes(model.config, n_ctx, 1, model.kv_types)
    slots = (0,) * len(model.spans)
    memory = host_plan(model.config, model.spans, model.reads.dense, kv, slots, str(model.kv_types))
    total = memory.total("host")
    return Plan(
        model=model,
        n_ctx=n_ctx,
        memory=memory,
        hit_rate=None,
        speed=cpu_band(model.work, machine, machine.cores) if machine else None,
        points=(),
        knee=None,
        card_gib=smallest_card(model, n_ctx, 0),
        good_card_gib=None,
        ram_gib=smallest_ram(total),
        notes=tuple(ram_notes(total, ram)),
    )


def curve_points(model: PlannedModel, rates: Rates, n_ctx: int, hit_rates: HitRates) -> tuple[Point, ...]:
    """Equal slots in every layer, from one token's demand to all experts."""
    config = model.config
    if not model.spans:
        return ()
    n, k, work = config.n_experts, config.n_picks, model.work
    counts = sorted({k, n, *(round(k + (n - k) * i / N_POINTS) for i in range(1, N_POINTS))})

    def point(count: int) -> Point:
        slots = (count,) * len(model.spans)
        known = hit_rates(slots).expected
        vram = vram_for(model, n_ctx, slot_bytes(model, slots))
        return Point(slots, count / n, vram, known, step_s(work, rates, known) * 1e3)

    return tuple(map(point, counts))


def knee_of(points: Sequence[Point]) -> Point | None:
    """The point farthest below the straight line, in time per token over slots, from the smallest cache to the largest; None where it hardly bends."""
    if len(points) < 3:
        return None
    first, last = points[0], points[-1]

    def below(p: Point) -> float:
        share = (p.fraction - first.fraction) / (last.fraction - first.fraction)
        return first.ms + share * (last.ms - first.ms) - p.ms

    best = max(points[1:-1], key=below)
    return best if below(best) > STRAIGHT * (first.ms - last.ms) else None


def slot_bytes(model: PlannedModel, n_slots: Sequence[int]) -> int:
    return sum(n * b for n, b in zip(n_slots, model.span_bytes, strict=True))


def vram_for(model: PlannedModel, n_ctx: int, slots: int) -> int:
    """The least budget that holds `slots` bytes of slots: needs grow with the budget, in steps and by the reserve's share."""
    budget = 0
    while (needed := estimated_needs(model, n_ctx, budget).total + slots) > budget:
        budget = needed
    return budget


def smallest_card(model: PlannedModel, n_ctx: int, slots: int) -> int | None:
    """The smallest usual card whose whole memory is enough."""
    return next((gib for gib in CARDS_GIB if estimated_needs(model, n_ctx, gib * GIB).total + slots <= gib * GIB), None)


def smallest_ram(n_bytes: int) -> int | None:
    """The smallest usual host memory that holds so much beside the program and the system."""
    return next((gib for gib in MEMORIES_GIB if n_bytes + 2 * PROGRAM_BYTES <= gib * GIB), None)


def gpu_notes(model: PlannedModel, memory: MemoryPlan, ram: int | None, n_ctx: int) -> list[str]:
    """What stands in the way, or goes without saying."""
    config, slots = model.config, memory.n_slots
    notes = ram_notes(memory.total("host"), ram)
    if slots and min(slots) < config.n_picks:
        notes.append(
            f"the cache is smaller than one token's demand: {min(slots)} slots in a layer, and a token picks {config.n_picks}"
        )
    if slots and min(slots) == config.n_experts:
        notes.append("everything fits: every expert has a slot, and nothing is fetched")
    if missing := missing_on_device(config):
        notes.append(f"the GPU kernels do not know {', '.join(missing)} yet: hotset runs this model on the CPU")
    if n_ctx > config.n_ctx_train:
        notes.append(f"the context of {n_ctx} is longer than the {config.n_ctx_train} the model was made for")
    return notes


def ram_notes(needed: int, ram: int | None) -> list[str]:
    if ram is None or needed + PROGRAM_BYTES <= ram:
        return []
    sizes = f"{(needed + PROGRAM_BYTES) / GIB:.1f} GiB are needed and {ram / GIB:.1f} GiB are there"
    return [f"host memory: {sizes}; choose a smaller quantisation or a machine with more memory"]


@dataclass(frozen=True)
class VramRow:
    """What fits a GPU: slots of the layers with the fewest and the most; None where not even the rest fits."""

    gib: int
    slots: tuple[int, int] | None
    fraction: float


def vram_row(model: PlannedModel, n_ctx: int, gib: int) -> VramRow:
    """What a card of `gib` GiB holds of the model."""
    budget = gib * GIB
    needs = estimated_needs(model, n_ctx, budget)
    try:
        slots = device_plan(model.config, model.spans, needs, CacheSize.parse("auto"), budget).n_slots
    except PlacementError:
        return VramRow(gib, None, 0.0)
    if not slots:
        return VramRow(gib, (0, 0), 1.0)
    return VramRow(gib, (min(slots), max(slots)), sum(slots) / (model.config.n_experts * len(slots)))


def with_bus(rates: Rates, text: str) -> Rates:
    """Rates with the bus as `--bus` names it: "measured", or GB/s."""
    if text.strip().lower() == "measured":
        return rates
    try:
        gb = float(text)
    except ValueError:
        gb = 0.0
    if not 0.01 <= gb <= 10_000:
        raise InputError(f"--bus {text!r}: write measured, or GB/s as a number, as in 24")
    return rates.with_bus(gb * 1e9)
