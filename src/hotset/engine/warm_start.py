"""Warm start: an expert cache begins with the experts that were hot in earlier runs, and may deal slots to layers by what those runs picked."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hotset.engine.record import RecordingCache
from hotset.experts.heat import first_scores, keep_heat, read_heat, shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.heat import Heat
    from hotset.experts.policy import Policy
    from hotset.experts.trace import Trace

# Fewer steps than this say little of what is hot.
MIN_STEPS = 16
# A server keeps what it learned so often, and everyone at the end.
SAVE_EVERY_S = 60.0
# Steps whose picks are kept until they are noted, where slots are dealt by them.
RING_STEPS = 256
# Numbers of slots at which a layer is replayed; between them hits lie on straight lines.
N_SIZES = 17


class WarmCache(RecordingCache, Protocol):
    """An expert cache that can begin warm: HostCache or ExpertCache."""

    policy: Policy

    def start_from(self, layer: int, experts: Sequence[int], scores: NDArray[Any]) -> None: ...

    def scores(self) -> tuple[list[NDArray[Any]], NDArray[Any]]: ...


@dataclass
class Keeping:
    """Heat, and whether and when it was kept last."""

    model_hash: str
    heat: Heat
    has_news: bool = False
    kept_at: float = field(default_factory=time.monotonic)

    def save(self) -> None:
        """Keep the heat where it is new; where that cannot be done the next start is cold, and nothing else is lost."""
        if not self.has_news:
            return
        self.has_news = False
        self.kept_at = time.monotonic()
        try:
            keep_heat(self.heat, self.model_hash)
        except OSError:
            return


class WarmStart:
    """The heat of one model: read at the start, noted after answers, kept when the engine goes or the program ends. `filled` slots began warm."""

    def __init__(self, model_hash: str, n_layers: int, n_experts: int, k: int) -> None:
        self.heat = read_heat(model_hash, n_layers, n_experts, k)
        self.began_with = self.heat.samples
        self.filled = 0
        self.dealt = False
        self._steps = 0
        self._keeping = Keeping(model_hash, self.heat)
        weakref.finalize(self, self._keeping.save)

    def deal(self, n_slots: tuple[int, ...], span_bytes: Sequence[int]) -> tuple[int, ...]:
        """Slots of each layer where they gained most in earlier runs, in the bytes of `n_slots`; the same where nothing was recorded."""
        from hotset.lab.pools import deal_bytes

        trace = self.heat.trace()
        if trace is None or not any(n_slots):
            return n_slots
        dealt = deal_bytes(sampled_curves(trace), span_bytes, n_slots)
        self.dealt = dealt != n_slots
        return dealt

    def fill(self, cache: WarmCache) -> None:
        """Put the hottest experts into the slots. `static` has a placement of its own."""
        if cache.policy.name == "static":
            return
        for layer, n_slots in enumerate(cache.shape.n_slots):
            hot = self.heat.hottest(layer, n_slots)
            if hot:
                cache.start_from(layer, hot, first_scores(cache.policy, self.heat.share[layer], cache.shape.k))
                self.filled += len(hot)

    def note(self, cache: WarmCache) -> None:
        """Learn from what the cache has seen since the last call; waits for the device."""
        scores, steps = cache.scores()
        now = int(steps.max(initial=0))
        new = now - self._steps
        if new < 0:  # the cache was emptied
            new = now
        if new < MIN_STEPS or cache.policy.name == "static":
            return
        self._steps = now
        self.heat.note(shares(cache.policy, scores, steps))
        ring = cache.recorded_picks()[-new:]
        self.heat.note_picks(rows_of(ring))
        self._keeping.has_news = True
        if time.monotonic() - self._keeping.kept_at >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Keep what was learned so far."""
        self._keeping.save()


def rows_of(ring: NDArray[np.int16]) -> NDArray[np.int16]:
    """Recorded picks [steps, layers, rows, k] of all real rows, as [tokens, layers, k]."""
    by_row = ring.transpose(0, 2, 1, 3).reshape(-1, ring.shape[1], ring.shape[3])
    return by_row[(by_row >= 0).all((1, 2))]


def sampled_curves(trace: Trace) -> NDArray[np.int64]:
    """Hits of every layer by its slots, int64 [layers, experts + 1], replayed at some sizes with the cache's default policy."""
    from hotset.lab.requests import layer_requests
    from hotset.lab.study import DEALER

    n = trace.n_experts
    sizes = np.unique(np.linspace(0, n, N_SIZES).round().astype(int))
    curves = np.zeros((trace.n_layers, n + 1), np.int64)
    for layer in range(trace.n_layers):
        requests = layer_requests(trace, layer)
        hits = [int(DEALER.hits(requests, int(size)).sum()) if size else 0 for size in sizes]
        curves[layer] = np.interp(np.arange(n + 1), sizes, hits).astype(np.int64)
    return curves
