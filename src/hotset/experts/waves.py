"""Experts of a long prompt in waves: those with a slot are used where they lie, the rest stream through two staging buffers.

While wave n computes, wave n + 1 is copied. Nothing becomes resident, and no score changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hotset.experts.streams import Mark
from hotset.host.copying import spread_copy
from hotset.kernels.fetch import fetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.bank import ExpertBank
    from hotset.experts.bounce import Bounce
    from hotset.experts.cache import ExpertCache

# A wave is large enough for the bus to run at full speed: 2.65 MB take 51 us, of which 5 us are the start.
WAVE_BYTES = 32 << 20
N_BUFFERS = 2
# From this share of a layer's experts on, all of them are brought in, without waiting for the picks.
ALL_FROM = 0.95


@dataclass(frozen=True, eq=False)
class Cut:
    """One layer's experts in waves: `order` int32 [experts] by rank, wave w has ranks wave_ranks[w] .. [w + 1], `address` int64 [experts]."""

    order: torch.Tensor
    wave_ranks: torch.Tensor
    address: torch.Tensor
    n_waves: int


@dataclass(frozen=True)
class Copy:
    """Experts of one wave into one staging buffer, in this order."""

    layer: int
    experts: tuple[int, ...]
    buffer: int


class BouncePieces:
    """Page-locked pieces that take turns: the host fills one while the GPU copies from another."""

    def __init__(self, bounce: Bounce, device: torch.device) -> None:
        self._pieces = [torch.from_numpy(piece) for piece in bounce.pieces]
        self._copied = [torch.cuda.Event() if device.type == "cuda" else None for _ in self._pieces]  # type: ignore[no-untyped-call]
        self._turn = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy to device memory on the current stream; the host waits for a piece that is still being copied from."""
        size = len(self._pieces[0])
        for at in range(0, len(source), size):
            part = source[at : at + size]
            piece, copied = self._pieces[self._turn][: len(part)], self._copied[self._turn]
            self._turn = (self._turn + 1) % len(self._pieces)
            if copied:
                copied.synchronize()
            spread_copy(piece.data_ptr(), part.data_ptr(), len(part))
            target[at : at + size].copy_(piece, non_blocking=True)
            if copied:
                copied.record()


class Staging:
    """Two buffers of device memory, the stream that fills them, and what a bank's bounce buffer gives to that."""

    def __init__(self, span_bytes: tuple[int, ...], n_experts: int, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.bounce: BouncePieces | None = None
        largest = max(span_bytes)
        self.wave_experts = max(1, min(n_experts, WAVE_BYTES // largest))
        self.max_waves = 1 + -(-n_experts // self.wave_experts)
        size = self.wave_experts * largest
        self.buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(N_BUFFERS)]
        self.stream = torch.cuda.Stream() if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.filled = [Mark(self.device) for _ in self.buffers]
        self.free = [Mark(self.device) for _ in self.buffers]

    @property
    def n_bytes(self) -> int:
        return sum(b.numel() for b in self.buffers)

    def fetch(
        self,
        lists: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        span_bytes: int,
        free: Mark,
        filled: Mark,
    ) -> None:
        """Fetch spans of a list (source, target, count: see kernels/fetch.py) on the stream: not before `free`, and `filled` says when they are there."""
        with torch.cuda.stream(self.stream):
            free.wait()
            fetch(*lists, span_bytes)
            filled.set()


def untouched(n_rows: int, n_experts: int, n_picks: int) -> float:
    """The share of the experts that rows which pick at random would leave out."""
    return (1 - n_picks / n_experts) ** n_rows


def expects_all(n_rows: int, n_experts: int, n_picks: int) -> bool:
    """Whether rows that pick at random would touch ALL_FROM of the experts: 48 rows at 8 of 128."""
    return untouched(n_rows, n_experts, n_picks) <= 1 - ALL_FROM


class IdleWaves:
    """Waves that bring nothing and in which nobody computes: kernels compile while the bank is still being filled."""

    def __init__(self, n_experts: int, device: torch.device) -> None:
        order = torch.arange(n_experts, dtype=torch.int32, device=device)
        ranks = torch.zeros(2, dtype=torch.int32, device=device)
        self._cut = Cut(order, ranks, torch.zeros(n_experts, dtype=torch.int64, device=device), 1)

    def cut(self, layer: int, picks: torch.Tensor) -> Cut:
        """One wave without an expert."""
        del layer, picks
        return self._cut

    def present(self, layer: int, wave: int) -> AbstractContextManager[None]:
        """Nothing is waited for."""
        del layer, wave
        return nullcontext()


class ExpertWaves:
    """The waves of one prompt's chunk, layer by layer; `take_all` brings every expert without looking at the picks."""

    def __init__(self, bank: ExpertBank, cache: ExpertCache, staging: Staging, *, take_all: bool) -> None:
        self._bank = bank
        self._bytes = torch.from_numpy(bank.data)
        self._base = [b - bank.address for b in bank.base]
        self._span_bytes = bank.span_bytes
        self._staging = staging
        if bank.bounce and not staging.bounce:
            staging.bounce = BouncePieces(bank.bounce, staging.device)
        self._resident = cache.slot_addresses()
        self._copies: list[Copy] = []
        self._started = 0
        self._used = 0
        self._waves: dict[int, list[int | None]] = {}
        self._cuts: dict[int, Cut] = {}
        self.streamed = np.zeros(len(bank.span_bytes), np.int64)
        self.in_place = np.zeros(len(bank.span_bytes), np.int64)
        if take_all:
            everything = np.ones(bank.n_experts, np.bool_)
            self._keep([(layer, everything) for layer in range(len(bank.span_bytes))])
            self._start_copies()

    def cut(self, layer: int, picks: torch.Tensor) -> Cut:
        """The waves of a layer, whose copies begin."""
        if layer not in self._cuts:
            chosen = np.zeros(len(self._resident[layer]), np.bool_)
            chosen[picks.cpu().numpy().reshape(-1)] = True
            self._keep([(layer, chosen)])
            self._start_copies()
        return self._cuts[layer]

    @contextmanager
    def present(self, layer: int, wave: int) -> Iterator[None]:
        """What is launched inside finds the wave's experts where the cut's addresses say."""
        copy = self._waves[layer][wave]
        if copy is None:
            yield
            return
        buffer = self._copies[copy].buffer
        self._staging.filled[buffer].wait()
        yield
        self._staging.free[buffer].set()
        self._used += 1
        self._start_copies()

    def _keep(self, layers: list[tuple[int, NDArray[np.bool_]]]) -> None:
        """Make the cuts of layers, all their tables in one upload: a later one would queue behind the copies."""
        plans = [(layer, *self._plan_layer(layer, chosen)) for layer, chosen in layers]

        def uploaded(table: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(table).to(self._staging.device)

        orders = uploaded(np.stack([order for _, order, _, _ in plans]))
        ranks = uploaded(np.concatenate([own for _, _, own, _ in plans]))
        addresses = uploaded(np.stack([address for _, _, _, address in plans]))
        at = 0
        for i, (layer, _, own, _) in enumerate(plans):
            self._cuts[layer] = Cut(orders[i], ranks[at : at + len(own)], addresses[i], len(own) - 1)
            at += len(own)

    def _plan_layer(
        self, layer: int, chosen: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        address = self._resident[layer].copy()
        here = np.flatnonzero(address)
        missing = np.flatnonzero((address == 0) & chosen)
        # Experts that nobody chose close the last wave: they have no pairs, and nothing is copied for them.
        rest = np.flatnonzero((address == 0) & ~chosen)
        ranks: list[int] = [0]
        waves: list[int | None] = []
        if here.size:
            ranks.append(here.size)
            waves.append(None)
        step, span = self._staging.wave_experts, self._span_bytes[layer]
        for first in range(0, missing.size, step):
            experts = missing[first : first + step]
            copy = Copy(layer, tuple(experts.tolist()), len(self._copies) % N_BUFFERS)
            address[experts] = self._staging.buffers[copy.buffer].data_ptr() + np.arange(experts.size) * span
            waves.append(len(self._copies))
            self._copies.append(copy)
            ranks.append(here.size + first + experts.size)
        if len(ranks) == 1:
            ranks.append(0)
            waves.append(None)
        ranks[-1] = address.size
        self._waves[layer] = waves
        self.streamed[layer] += missing.size
        self.in_place[layer] += here.size
        return np.concatenate([here, missing, rest]).astype(np.int32), np.array(ranks, np.int32), address

    def _start_copies(self) -> None:
        """Start every copy whose buffer is free or will be once the work before it is done."""
        while self._started < min(len(self._copies), self._used + N_BUFFERS):
            self._copy(self._copies[self._started], again=self._started >= N_BUFFERS)
            self._started += 1

    def _copy(self, copy: Copy, *, again: bool) -> None:
        staging, span = self._staging, self._span_bytes[copy.layer]
        if staging.stream is not None and self._started == 0:
            staging.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(staging.stream):
            if again:
                staging.free[copy.buffer].wait()
            self._copy_runs(copy, span)
            staging.filled[copy.buffer].set()

    def _copy_runs(self, copy: Copy, span: int) -> None:
        """Neighbours in the bank go in one copy."""
        target, base = self._staging.buffers[copy.buffer], self._base[copy.layer]
        first = 0
        for i in range(1, len(copy.experts) + 1):
            if i == len(copy.experts) or copy.experts[i] != copy.experts[i - 1] + 1:
                source = base + copy.experts[first] * span
                n = (i - first) * span
                self._copy_run(target[first * span : first * span + n], source)
                first = i

    def _copy_run(self, target: torch.Tensor, source: int) -> None:
        """Copy from byte `source` of the bank on; what is not page-locked goes through the bounce buffer."""
        done = 0
        for n, locked in self._bank.runs(source, target.numel()):
            part, start = target[done : done + n], source + done
            if locked or self._staging.bounce is None:
                part.copy_(self._bytes[start : start + n], non_blocking=True)
            else:
                self._staging.bounce.copy(part, self._bytes[start : start + n])
            done += n
