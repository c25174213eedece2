"""Page-locked memory: who locks it, and the few spans of it through which experts go that the GPU cannot read where they lie."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hotset.errors import DeviceError
from hotset.host.pages import own_pages
from hotset.quant.layout import Bytes

MIB = 1 << 20
# What a step's misses are gathered in before the fetch kernel takes them: 24 experts of 2.65 MB.
RELAY_BYTES = 64 * MIB
# What a prompt's experts stream through, twice, so that one is filled while the other is copied from.
PIECE_BYTES = 4 * MIB
N_PIECES = 2


class Locker(Protocol):
    """Page-locks host memory for the GPU."""

    def lock(self, start: int, n_bytes: int) -> bool:
        """Whether the driver locked it."""

    def unlock(self, start: int) -> None:
        """Undo a `lock`."""

    def shift(self, start: int) -> int:
        """What the GPU adds to addresses of a locked area that begins at `start`; mostly 0."""


class Bounce:
    """`capacity` spans for the misses of a step, and pieces for prompts, all page-locked."""

    def __init__(self, locker: Locker, span_bytes: int, n_spans: int) -> None:
        """Lock room for `n_spans` spans, or for as many as the driver lets it; DeviceError where it is not even one."""
        self._locker = locker
        self.piece_bytes = max(span_bytes, PIECE_BYTES)
        self.capacity = max(1, min(n_spans, RELAY_BYTES // span_bytes))
        while not self._lock(self.capacity * span_bytes):
            if self.capacity == 1:
                raise DeviceError(
                    f"the driver would not page-lock {self.data.nbytes / MIB:.0f} MiB of host memory, without which the GPU gets no expert; "
                    "raise the limit (ulimit -l, or memory given to the virtual machine) or run with --device cpu"
                )
            self.capacity //= 2
        pieces = self.data[self.capacity * span_bytes :]
        self.pieces: list[Bytes] = [pieces[i * self.piece_bytes :][: self.piece_bytes] for i in range(N_PIECES)]
        self.shift = locker.shift(self.address)

    def _lock(self, relay_bytes: int) -> bool:
        self.data: Bytes = np.frombuffer(own_pages(relay_bytes + N_PIECES * self.piece_bytes), np.uint8)
        self.address: int = self.data.ctypes.data
        self._locked = self._locker.lock(self.address, self.data.nbytes)
        return self._locked

    def __del__(self) -> None:
        if getattr(self, "_locked", False):
            self._locker.unlock(self.address)
