"""What the expert cache did: counts per layer, the same on the GPU, on the CPU and in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.policy import Policy
    from hotset.experts.slots import CacheShape


Column = tuple[int, ...]


@dataclass(frozen=True)
class CacheCounts:
    """Per layer: distinct experts found and missed, misses that went to the overflow area (they count as misses too), requests."""

    hits: Column
    misses: tuple[int, ...]
    overflows: tuple[int, ...]
    requests: tuple[int, ...]

    @property
    def layer_hit_rates(self) -> tuple[float | None, ...]:
        return tuple(rate(hit, miss) for hit, miss in zip(self.hits, self.misses, strict=True))

    @property
    def hit_rate(self) -> float | None:
        """Hits per distinct expert needed, over all layers; None before the first request."""
        return rate(sum(self.hits), sum(self.misses))


@dataclass(frozen=True)
class CacheStats(CacheCounts):
    """Counts together with what they were counted on."""

    policy: str
    n_slots: tuple[int, ...]
    n_experts: tuple[int, ...]
    span_bytes: tuple[int, ...]

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes that misses fetched (or would have, where experts are computed in place), per layer."""
        return tuple(miss * span for miss, span in zip(self.misses, self.span_bytes, strict=True))

    @property
    def bytes_fetched(self) -> int:
        return sum(self.layer_bytes)


@dataclass(frozen=True)
class Prefetched:
    """Bytes that came before their layer had picked: `needed` ones are part of what misses fetched, those `in_vain` came on top of it."""

    needed: int
    in_vain: int


def counter_columns(counters: NDArray[Any]) -> tuple[Column, Column, Column, Column]:
    """Counters [layers, 4], as `request.request` and the lookup kernel add them up, as the first four fields of CacheCounts."""
    hits, misses, overflows, requests = (tuple(column.tolist()) for column in counters.T)
    return hits, misses, overflows, requests


def cache_stats(counters: NDArray[Any], shape: CacheShape, policy: Policy) -> CacheStats:
    """Counters [layers, 4] of a cache of that shape and policy, with what they were counted on."""
    return CacheStats(
        *counter_columns(counters),
        policy=str(policy),
        n_slots=shape.n_slots,
        n_experts=shape.n_experts,
        span_bytes=shape.span_bytes,
    )


def rate(hits: int, misses: int) -> float | None:
    """Hits per distinct expert needed; None before the first."""
    return hits / (hits + misses) if hits + misses else None
