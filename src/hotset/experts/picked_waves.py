"""Experts of a short prompt in waves that the device decides on: those that a row picked come, and the host never waits for the picks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from hotset.experts.ahead import Ahead, likely_experts
from hotset.experts.waves import N_BUFFERS, Cut, Staging
from hotset.kernels.chunk_cut import ChunkCut, Source, cut_chunk

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.cache import ExpertCache


def places(cache: ExpertCache, staging: Staging) -> tuple[tuple[int, int], int]:
    """Addresses of two buffers, and how many experts each holds: the halves of the overflow area, idle meanwhile, or the staging buffers if larger.

    Few rows compute in less time than their experts take to come, and each wave costs the host launches: few large waves serve them best.
    """
    largest = max(cache.shape.span_bytes)
    half = cache.shape.overflow_bytes // largest // N_BUFFERS
    if half <= staging.wave_experts:
        first, second = (buffer.data_ptr() for buffer in staging.buffers)
        return (first, second), staging.wave_experts
    start = cache.overflow_base
    return (start, start + half * largest), half


class PickedWaves:
    """See waves.ExpertWaves, of which it has `cut`, `present` and the counts, for `n_rows` rows.

    The bank must be readable by the device as a whole.
    """

    def __init__(self, cache: ExpertCache, staging: Staging, n_rows: int) -> None:
        resident = cache.slot_addresses()
        self._resident = torch.from_numpy(resident).to(staging.device)
        self._cache = cache
        self._staging = staging
        self._places, self._wave_experts = places(cache, staging)
        n_experts = resident.shape[1]
        max_waves = -(-n_experts // self._wave_experts)
        self._decided = ChunkCut.empty(n_experts, max_waves, self._wave_experts, staging.device)
        self._counts = torch.zeros(len(resident), 2, dtype=torch.int64, device=staging.device)
        staging_is_idle = self._places[0] != staging.buffers[0].data_ptr()
        n_ahead = likely_experts(n_rows, cache.shape.k, n_experts, staging.wave_experts if staging_is_idle else 0)
        self._ahead = Ahead(cache, staging, resident, n_ahead)
        slots = (resident != 0).sum(1).tolist()
        self._n_here = [here + ahead for here, ahead in zip(slots, self._ahead.n_experts, strict=True)]
        self._layer = self._n_waves = self._started = self._used = self._turn = 0
        if staging.stream is not None:
            staging.stream.wait_stream(torch.cuda.current_stream())
        self._ahead.bring(0)

    def cut(self, layer: int, picks: torch.Tensor) -> Cut:
        """The waves of a layer, whose copies begin."""
        staging, decided, n_here = self._staging, self._decided, self._n_here[layer]
        step = self._wave_experts
        self._turn += self._n_waves
        self._n_waves = -(-min(decided.order.numel() - n_here, picks.numel()) // step)
        self._layer, self._started, self._used = layer, 0, 0
        source = Source(self._cache.bank_base[layer], self._cache.shape.span_bytes[layer], self._places, step)
        turn = self._turn % N_BUFFERS
        here = self._resident[layer], self._ahead.address[layer]
        cut_chunk(decided, picks, *here, self._counts[layer], source, self._n_waves, turn)
        if staging.stream is not None:
            staging.stream.wait_stream(torch.cuda.current_stream())
        self._start()
        # Without an expert here the missing ones' first wave is the first of all.
        ranks = decided.wave_ranks[0 if n_here or not self._n_waves else 1 : self._n_waves + 2]
        return Cut(decided.order, ranks, decided.address, len(ranks) - 1)

    @contextmanager
    def present(self, layer: int, wave: int) -> Iterator[None]:
        """What is launched inside finds the wave's experts where the cut's addresses say."""
        missing = wave - (1 if self._n_here[layer] else 0)
        if missing < 0 or not self._n_waves:
            self._ahead.await_arrival(layer)
            yield
            self._ahead.release(layer)
            return
        buffer = (self._turn + missing) % N_BUFFERS
        self._staging.filled[buffer].wait()
        yield
        self._staging.free[buffer].set()
        self._used += 1
        self._start()

    def _start(self) -> None:
        """Start every copy whose buffer is free or will be once the work before it is done, and the next layer's after the last of this."""
        if self._started == self._n_waves > 0:
            return
        while self._started < min(self._n_waves, self._used + N_BUFFERS):
            self._copy(self._started)
            self._started += 1
        if self._started == self._n_waves:
            self._ahead.bring(self._layer + 1)

    def _copy(self, wave: int) -> None:
        staging, decided = self._staging, self._decided
        buffer = (self._turn + wave) % N_BUFFERS
        lists = decided.source[wave], decided.target[wave], decided.n_fetch[wave]
        span = self._cache.shape.span_bytes[self._layer]
        staging.fetch(lists, span, staging.free[buffer], staging.filled[buffer])

    @property
    def in_place(self) -> NDArray[np.int64]:
        """Resident experts used per layer; waits for the device."""
        return self._counts[:, 0].cpu().numpy()

    @property
    def streamed(self) -> NDArray[np.int64]:
        """Experts fetched per layer; waits for the device."""
        return self._counts[:, 1].cpu().numpy()
