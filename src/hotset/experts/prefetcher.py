"""Experts that come before their router has decided: what is known of the steps so far, and where guesses lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.experts.stats import Prefetched
from hotset.kernels.guess import N_GUESSES, Guesses, guess
from hotset.kernels.learn import learn
from hotset.kernels.prefetch import prefetch

if TYPE_CHECKING:
    import torch

    from hotset.experts.slots import CacheShape
    from hotset.kernels.lookup import LookupBuffers
    from hotset.kernels.prefetch import PrefetchLaunch


class Prefetcher:
    """Brings likely misses of the layer to come beside what a lookup's `buffers` decide. Guesses lie at the end of the overflow area, where a step's own
    picks do not reach: a step of all rows has no room for them.
    """

    def __init__(self, shape: CacheShape, buffers: LookupBuffers, launch: PrefetchLaunch) -> None:
        n_layers, padded = buffers.slot_of.shape
        self.guesses = Guesses.empty(n_layers, padded, launch.n_programs, buffers.slot_of.device)
        self.launch = launch
        self._shape = shape
        self._buffers = buffers

    def n_guesses(self, n_picks: int) -> int:
        """How many guesses a step of so many picks a layer has room for."""
        return max(0, min(N_GUESSES, self._shape.max_rows * self._shape.k - n_picks))

    def guess(self, layer: int, n_picks: int, likely: torch.Tensor | None) -> None:
        """Guess what `layer` will miss, after the lookup of the one before it."""
        buffers, k = self._buffers, self._shape.k
        guess(
            self.guesses, buffers.picked, likely, buffers.table, buffers.slot_of, buffers.calls, layer,
            n_rows=n_picks // k, k=k, n=self.n_guesses(n_picks),
        )  # fmt: skip

    def bring(self, layer: int, repeat: int) -> None:
        """Copy what was guessed until the lookup of `layer` begins; no earlier than the last fetch has ended, which reads the same areas."""
        span_bytes = self._shape.span_bytes[layer]
        prefetch(self.guesses.of(layer), self._buffers.calls, layer, span_bytes, self.launch, repeat=repeat)

    def learn(self, n_picks: int) -> None:
        """After a step's last lookup: remember what its rows picked."""
        learn(self.guesses, self._buffers.picked, n_rows=n_picks // self._shape.k, k=self._shape.k)

    def reset_stats(self) -> None:
        """Count from zero again."""
        self.guesses.counts.zero_()

    def counts(self) -> Prefetched:
        """What came since the last reset; waits for the device."""
        came, needed = self.guesses.counts.sum(0).tolist()
        return Prefetched(needed, came - needed)
