"""Misses that the GPU cannot read: between lookup and fetch the driver calls the host, which copies them to where it can.

The host's part is one compiled function that calls no CUDA and needs no Python, so it is a node of the captured step: nothing spins, nothing
can be late, and a fetch never sees a span before it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hotset.host.copying import JOB_FIELDS, relay_callback

if TYPE_CHECKING:
    from hotset.experts.bank import ExpertBank
    from hotset.experts.bounce import Bounce

# Calls a C function with an argument once everything before it on the current stream is done: (function, argument).
HostCall = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class FetchList:
    """Spans to bring in: addresses int64 [max_picks] from where and to where, and how many as int32 [1]."""

    source: torch.Tensor
    target: torch.Tensor
    count: torch.Tensor

    @classmethod
    def empty(cls, max_picks: int, *, pinned: bool) -> FetchList:
        """A list in host memory, page-locked where a GPU shall use it."""
        source, target = (torch.zeros(max_picks, dtype=torch.int64, pin_memory=pinned) for _ in range(2))
        return cls(source, target, torch.zeros(1, dtype=torch.int32, pin_memory=pinned))

    @property
    def addresses(self) -> tuple[int, int, int]:
        return self.source.data_ptr(), self.target.data_ptr(), self.count.data_ptr()


class Relay:
    """For the layers of a bank that are not page-locked as a whole; `posted` is where their lookups write."""

    def __init__(self, bank: ExpertBank, bounce: Bounce, max_picks: int, call: HostCall | None = None) -> None:
        """`call` None: no GPU, the host's part is done at once."""
        self._bounce = bounce
        self._call = call
        self._reached = tuple(bank.is_locked(layer) for layer in range(len(bank.spans)))
        self.posted, self._out = (FetchList.empty(max_picks, pinned=call is not None) for _ in range(2))
        n_rounds = -(-max_picks // bounce.capacity)
        values = dict(zip(JOB_FIELDS, (*self.posted.addresses, *self._out.addresses), strict=False))
        values |= {
            "capacity": bounce.capacity,
            "shift": bank.shift,
            "locked_end": bank.address + bank.locked_bytes,
        }
        values |= {"bounce": bounce.address, "bounce_shift": bounce.shift}
        self._jobs = np.array(
            [
                [
                    [(values | {"first": i * bounce.capacity, "span_bytes": span})[field] for field in JOB_FIELDS]
                    for i in range(n_rounds)
                ]
                for span in bank.span_bytes
            ],
            np.int64,
        )

    def serves(self, layer: int) -> bool:
        """Whether this layer's misses need the host."""
        return not self._reached[layer]

    def rounds(self, layer: int, n_picks: int) -> Iterator[FetchList]:
        """Lists that the fetch kernel can follow, for a lookup of `n_picks` picks that wrote to `posted`: as many as the bounce buffer needs."""
        host = relay_callback()
        for i in range(-(-n_picks // self._bounce.capacity)):
            job = self._jobs[layer, i].ctypes.data
            if self._call is None:
                host.ctypes(job)
            else:
                self._call(host.address, job)
            yield self._out

    def post(self, layer: int, source: torch.Tensor, target: torch.Tensor) -> Iterator[FetchList]:
        """The same for lists of any length that the host has made, int64 on the CPU; waits for the device."""
        size = self.posted.source.numel()
        for at in range(0, source.numel(), size):
            if self._call is not None:
                torch.cuda.synchronize()
            n = min(size, source.numel() - at)
            self.posted.source[:n] = source[at : at + n]
            self.posted.target[:n] = target[at : at + n]
            self.posted.count.fill_(n)
            yield from self.rounds(layer, n)
