"""All experts of a model in host memory: one contiguous span per (layer, expert), filled once, then read only."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import PlacementError
from hotset.host.pages import own_pages
from hotset.host.ram import available_bytes
from hotset.host.rearrange import rearrange
from hotset.quant.layout import Bytes, SpanLayout

if TYPE_CHECKING:
    from hotset.experts.bounce import Bounce, Locker

GIB = 1 << 30
# Registered in pieces, so that a refusal says how far it got; 256 MB cost 30 ms to register.
LOCK_CHUNK = 256 << 20
_MARGIN = 512 << 20


class ExpertBank:
    """Spans of all layers; expert e of layer l begins at address base[l] + e * span_bytes[l]."""

    def __init__(self, spans: tuple[SpanLayout, ...], n_experts: int) -> None:
        self.spans = spans
        self.n_experts = n_experts
        self.span_bytes = tuple(s.n_bytes for s in spans)
        self.n_bytes = sum(self.span_bytes) * n_experts
        self._check_room()
        self.data: Bytes = np.frombuffer(own_pages(self.n_bytes), np.uint8)
        self.address: int = self.data.ctypes.data
        self._locked: list[tuple[int, int]] = []
        self.bounce: Bounce | None = None  # what lies past `locked_bytes` goes through it to the GPU
        self.shift = 0  # what the GPU adds to the host's addresses

    def _check_room(self) -> None:
        room = available_bytes()
        if self.n_bytes + _MARGIN > room:
            raise PlacementError(
                f"the experts need {self.n_bytes / GIB:.1f} GiB of host memory and {room / GIB:.1f} GiB are available; "
                "close other programs, choose a smaller quantisation, or use a machine with more memory"
            )

    @cached_property
    def base(self) -> tuple[int, ...]:
        """Address of each layer's first span."""
        starts = np.cumsum([0, *(b * self.n_experts for b in self.span_bytes)])[:-1]
        return tuple(self.address + int(s) for s in starts)

    def fill(self, layer: int, role: str, blocks: Bytes, first: int = 0) -> None:
        """GGUF bytes of one role's experts from `first` on, uint8 [n * rows * row_bytes], into the layer's spans; on the calling thread alone."""
        span = self.spans[layer]
        matrix = span.matrix(role)
        rearrange(
            matrix,
            blocks,
            self.base[layer] + first * span.n_bytes + span.start(role),
            n_items=blocks.size // (matrix.rows * matrix.row_bytes),
            target_stride=span.n_bytes,
        )

    def span(self, layer: int, expert: int) -> Bytes:
        """The bytes of one expert, uint8 [span_bytes]."""
        start = self.base[layer] - self.address + expert * self.span_bytes[layer]
        return self.data[start : start + self.span_bytes[layer]]

    def page_lock(
        self,
        locker: Locker,
        limit: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
        ready: Callable[[int], None] = lambda _: None,
    ) -> bool:
        """Page-lock the bank from its start on for reads by the GPU, all of it or what `limit` bytes and the driver allow; False where the driver refused.

        `progress` is told how many bytes are; `ready` is called with how many come next and may wait for them to be filled. A refusal gives a piece back, so that the driver has room for what else must be locked.
        """
        self._locker = locker
        for start, size in self._pieces(self._lockable(limit)):
            ready(start + size)
            if not locker.lock(self.address + start, size):
                self._unlock_last()
                return False
            self._locked.append((start, size))
            if not start:
                self.shift = locker.shift(self.address)
            progress(start + size)
        return True

    def _lockable(self, limit: int | None) -> int:
        if limit is None or limit >= self.n_bytes:
            return self.n_bytes
        return limit // mmap.PAGESIZE * mmap.PAGESIZE

    @staticmethod
    def _pieces(end: int) -> Iterator[tuple[int, int]]:
        for start in range(0, end, LOCK_CHUNK):
            yield start, min(LOCK_CHUNK, end - start)

    @property
    def locked_bytes(self) -> int:
        """How much of the bank, from its start on, is page-locked."""
        return sum(size for _, size in self._locked)

    def is_locked(self, layer: int) -> bool:
        """Whether all of a layer is page-locked."""
        end = self.base[layer] + self.n_experts * self.span_bytes[layer]
        return end <= self.address + self.locked_bytes

    def runs(self, start: int, n_bytes: int) -> Iterator[tuple[int, bool]]:
        """Cut n_bytes from byte `start` on into lengths that one copy may take, and whether each is page-locked.

        A copy may not cross from one page-locked piece to the next.
        """
        end, border = start + n_bytes, self.locked_bytes
        while start < end:
            stop = min(end, (start // LOCK_CHUNK + 1) * LOCK_CHUNK, border) if start < border else end
            yield stop - start, start < border
            start = stop

    def release(self) -> None:
        """Unlock what was locked; the memory goes with the object."""
        while self._locked:
            self._unlock_last()

    def _unlock_last(self) -> None:
        if self._locked:
            start, _ = self._locked.pop()
            self._locker.unlock(self.address + start)

    def __del__(self) -> None:
        if getattr(self, "_locked", None):
            self.release()
