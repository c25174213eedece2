"""How fast a model will decode: a step with every expert resident, from bytes and measured rates, and the missed bytes over the bus.

    step = layers * LAYER_S + dense bytes / memory + expert bytes / (EXPERT_SHARE * memory) + missed bytes / (FETCH_SHARE * copy rate)

The three constants were fitted to steps of three model shapes on one GPU (docs/benchmarks.md); one sequence, a short context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hotset.plan.hardware import rate_between

if TYPE_CHECKING:
    from hotset.model.config import ModelConfig
    from hotset.plan.hardware import Machine
    from hotset.plan.traffic import Traffic

# Seconds of a layer's small kernels (norms, attention, routing, lookup) within a captured graph; they wait for one another more than for memory.
LAYER_S = 50.5e-6
# What the expert kernels get of the rate at which GPU memory is read and written together: Q4_K's 1.65 of 4.2 TB/s.
EXPERT_SHARE = 0.35
# Misses as a share of the pinned copy rate: the fetch kernel is a little slower, and part of it hides behind the hits' products.
FETCH_SHARE = 0.99
# Bands at a known hit rate: a shape that the constants were not fitted to was off by 19 % at most; other GPUs are guesses.
KNOWN_GPU, OTHER_GPU, ASSUMED = 0.20, 0.30, 0.40
FITTED_ON = "NVIDIA H200"
# On the CPU: decoding as a share of a plain read of memory with the same threads, from 2 threads to 16 (docs/benchmarks.md).
CPU_SHARES = (0.42, 0.80, 1.0)
# And what a layer takes there however small it is: the demo model's six at 980 tokens/s.
CPU_LAYER_S = 140e-6
# A card that nothing was measured of: what PCIe 4 x16 copies at, and the memory of a card of the middle.
ASSUMED_COPY = {1 << 20: 22e9}
ASSUMED_MEMORY = 450e9


@dataclass(frozen=True)
class Work:
    """What one token takes: bytes of weights that are no experts, and per layer with experts the bytes of one."""

    n_layers: int
    n_picks: int
    dense_bytes: int
    span_bytes: tuple[int, ...]

    @classmethod
    def of(cls, config: ModelConfig, reads: Traffic, span_bytes: tuple[int, ...]) -> Work:
        return cls(config.n_layers, config.n_picks, reads.dense_read, span_bytes)

    @property
    def expert_bytes(self) -> int:
        return self.n_picks * sum(self.span_bytes)


@dataclass(frozen=True)
class Rates:
    """Bytes per second: GPU `memory`, and copies over the bus by size. `bus_factor` times every miss is fetched.

    `tolerance` is how far a step may be from the forecast though the hit rate is right; `source` says where the rates come from.
    """

    memory: float
    copies: Mapping[int, float]
    tolerance: float
    source: str
    bus_factor: float = 1.0

    @classmethod
    def of(cls, machine: Machine | None) -> Rates:
        """What was measured of the machine's GPU; assumptions where nothing was."""
        gpu = machine.gpu if machine else None
        if gpu is None:
            how = "assumed: PCIe 4 x16 and a card of the middle, for no GPU was measured here"
            return cls(ASSUMED_MEMORY, ASSUMED_COPY, ASSUMED, how)
        tolerance = KNOWN_GPU if gpu.name == FITTED_ON else OTHER_GPU
        return cls(gpu.memory, gpu.pinned_copy, tolerance, f"measured on {gpu.name}")

    def with_bus(self, rate: float) -> Rates:
        """The same with copies of every size at `rate` bytes per second."""
        return replace(self, copies={1: rate}, source=f"{self.source}; the bus as given")

    def copy_rate(self, n_bytes: int) -> float:
        return rate_between(self.copies, n_bytes)


@dataclass(frozen=True)
class Band:
    """Tokens per second: expected, and from `low` to `high` what may come."""

    low: float
    expected: float
    high: float

    @classmethod
    def around(cls, expected: float, share: float) -> Band:
        return cls(expected / (1 + share), expected, expected * (1 + share))


def resident_s(work: Work, memory: float) -> float:
    """Seconds of a decode step with every expert on the GPU."""
    return work.n_layers * LAYER_S + work.dense_bytes / memory + work.expert_bytes / (EXPERT_SHARE * memory)


def miss_s(work: Work, rates: Rates, hit_rate: float) -> float:
    """Seconds that misses add to a step."""
    per_pick = sum(span / rates.copy_rate(span) for span in work.span_bytes)
    return (1 - hit_rate) * work.n_picks * per_pick * rates.bus_factor / FETCH_SHARE


def step_s(work: Work, rates: Rates, hit_rate: float) -> float:
    """Seconds of a decode step at a hit rate."""
    return resident_s(work, rates.memory) + miss_s(work, rates, hit_rate)


def decode_band(work: Work, rates: Rates, hit_rates: tuple[float, float, float]) -> Band:
    """Speed at the least, the expected and the best hit rate."""
    low, expected, high = (1 / step_s(work, rates, h) for h in hit_rates)
    return Band(low / (1 + rates.tolerance), expected, high * (1 + rates.tolerance))


def cpu_band(work: Work, machine: Machine, threads: int) -> Band:
    """Speed on the CPU, which reads every weight from memory."""
    read_s = (work.dense_bytes + work.expert_bytes) / machine.dram_rate(threads)
    low, expected, high = (1 / (read_s / share + work.n_layers * CPU_LAYER_S) for share in CPU_SHARES)
    return Band(low, expected, high)
