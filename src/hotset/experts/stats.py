"""What the expert cache did: counts per layer, the same on the GPU, on the CPU and in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        return tuple(_rate(hit, miss) for hit, miss in zip(self.hits, self.misses, strict=True))

    @property
    def hit_rate(self) -> float | None:
        """Hits per distinct expert needed, over all layers; None before the first request."""
        return _rate(sum(self.hits), sum(self.misses))


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


def counter_columns(counters: NDArray[Any]) -> tuple[Column, Column, Column, Column]:
    """Counters [layers, 4], as `policy.request` and the lookup kernel add them up, as the first four fields of CacheCounts."""
    hits, misses, overflows, requests = (tuple(column.tolist()) for column in counters.T)
    return hits, misses, overflows, requests


def _rate(hits: int, misses: int) -> float | None:
    return hits / (hits + misses) if hits + misses else None
