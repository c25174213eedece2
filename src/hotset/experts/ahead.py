"""Experts that come ahead of a layer's picks: the bus would idle while a layer of a short prompt computes all but its experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hotset.experts.streams import Mark
from hotset.experts.waves import untouched
from hotset.kernels.chunk_cut import APART
from hotset.kernels.counts import cdiv

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.cache import ExpertCache
    from hotset.experts.waves import Staging

# An expert comes ahead of the picks where rows that pick at random would touch it this often: what is fetched in vain costs the bus too.
LIKELY = 0.5


def likely_experts(n_rows: int, n_picks: int, n_experts: int, at_most: int) -> int:
    """How many of a layer's missing experts to bring ahead of its picks."""
    return at_most if 1 - untouched(n_rows, n_experts, n_picks) >= LIKELY else 0


class Ahead:
    """The missing experts with the highest scores of every layer, in the staging buffers, which layers take in turn.

    `address` int64 [layers, experts] says where they will lie, 0 for all others.
    """

    def __init__(self, cache: ExpertCache, staging: Staging, resident: NDArray[np.int64], n_ahead: int) -> None:
        n_layers = len(resident)
        self._staging = staging
        self._span_bytes = cache.shape.span_bytes
        self.n_experts = [min(n_ahead, int(n)) for n in (resident == 0).sum(1)]
        address, lists = np.zeros_like(resident), np.zeros((2, n_layers, cdiv(n_ahead, APART) * APART), np.int64)
        scores = cache.scores()[0] if n_ahead else []
        for layer, n in enumerate(self.n_experts if n_ahead else ()):
            missing = np.flatnonzero(resident[layer] == 0)
            experts = missing[np.argsort(-scores[layer][0, missing], kind="stable")[:n]]
            span, place = self._span_bytes[layer], staging.buffers[layer % len(staging.buffers)].data_ptr()
            address[layer, experts] = place + np.arange(n) * span
            lists[:, layer, :n] = cache.bank_base[layer] + experts * span, address[layer, experts]
        counts = np.repeat(np.array(self.n_experts, np.int32)[:, None], APART, 1)
        self.address, self._lists, self._counts = (
            torch.from_numpy(table).to(staging.device) for table in (address, lists, counts)
        )
        self._filled, self._free = ([Mark(staging.device) for _ in staging.buffers] for _ in range(2))

    def bring(self, layer: int) -> None:
        """Start the copies of a layer, behind those that were started before."""
        if layer >= len(self.n_experts) or not self.n_experts[layer]:
            return
        source, target = self._lists[:, layer]
        turn = layer % len(self._filled)
        lists = source, target, self._counts[layer]
        self._staging.fetch(lists, self._span_bytes[layer], self._free[turn], self._filled[turn])

    def await_arrival(self, layer: int) -> None:
        """What is launched from here on finds the layer's experts."""
        if self.n_experts[layer]:
            self._filled[layer % len(self._filled)].wait()

    def release(self, layer: int) -> None:
        """What was launched so far was the last to need them."""
        if self.n_experts[layer]:
            self._free[layer % len(self._free)].set()
