"""The host's part in bringing experts to a GPU that cannot read all of the bank."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np

from hotset.host.compile import callback, compiled
from hotset.host.memory import copy_bytes, peek32, peek64, poke32, poke64

# A job of `relay`: addresses of int64 lists and int32 counts as the GPU wrote them and as it shall read them, and how to get from one to the other.
JOB_FIELDS = (
    "source", "target", "count",
    "out_source", "out_target", "out_count",
    "first", "capacity", "span_bytes",
    "shift", "locked_end", "bounce", "bounce_shift",
)  # fmt: skip
# Far below what a core copies in the time that it takes to wake another.
PIECE_BYTES = 256 << 10


def relay(job: int) -> None:
    """Entries first .. first + capacity of a fetch list, with what lies beyond `locked_end` copied to the bounce buffer and taken from there.

    `shift` and `bounce_shift` are what the GPU adds to the host's addresses.
    """
    source, target = peek64(job), peek64(job + 8)
    out_source, out_target = peek64(job + 24), peek64(job + 32)
    first, capacity, span = peek64(job + 48), peek64(job + 56), peek64(job + 64)
    shift, locked_end = peek64(job + 72), peek64(job + 80)
    bounce, bounce_shift = peek64(job + 88), peek64(job + 96)
    n = min(np.int64(peek32(peek64(job + 16))) - first, capacity)
    for i in range(n):
        there = peek64(source + 8 * (first + i))
        here = there - shift
        if here + span > locked_end:
            copy_bytes(bounce + i * span, here, span)
            there = bounce + i * span + bounce_shift
        poke64(out_source + 8 * i, there)
        poke64(out_target + 8 * i, peek64(target + 8 * (first + i)))
    poke32(peek64(job + 40), np.uint32(max(n, 0)))


@cache
def relay_callback() -> Any:
    """`relay` as a C function of one address (`.address`, or called as `.ctypes`): the driver calls it between two kernels."""
    return callback(relay)


@compiled(parallel=True)
def _spread_copy(target: int, source: int, n: int, piece: int) -> None:
    for i in numba.prange((n + piece - 1) // piece):
        start = i * piece
        copy_bytes(target + start, source + start, min(piece, n - start))


def spread_copy(target: int, source: int, n: int) -> None:
    """Copy n bytes between addresses with all threads."""
    _spread_copy(target, source, n, PIECE_BYTES)
