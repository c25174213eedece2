"""Bring missed experts in: the GPU itself reads their spans from page-locked host memory.

target[i][b] = source[i][b] for the n_fetch spans of a request and the bytes of them that are asked for, b = first..first + n_bytes - 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.clock import note_fetch, now
from hotset.quant.layout import SPAN_ALIGNMENT
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FetchLaunch:
    """How the copy is spread. 8-16 blocks fill the bus, and many more would take a small card from other kernels.

    A chunk of BLOCK 8-byte words is 16 bytes times (words / 2 / threads) loads in flight for each thread.
    """

    n_programs: int = 16
    block_words: int = 2048
    num_warps: int = 8


FETCH_LAUNCH = FetchLaunch()


# All programs share every span, chunk by chunk, so that a single missed expert has the whole bus as well.
@jit
def fetch_kernel(
    source: tl.tensor,  # int64 [n], addresses
    target: tl.tensor,  # int64 [n], addresses
    n_fetch: tl.tensor,  # int32 [1]
    first: tl.tensor,  # bytes of each span before the part
    n_words: tl.tensor,  # 8-byte words of the part
    times: tl.tensor,  # int64 [3], see clock.py; any pointer where not TIMED
    repeat: tl.tensor,  # copies of each chunk: more than one imitates a slower bus
    BLOCK: tl.constexpr,
    TIMED: tl.constexpr,
) -> None:
    begin = now(TIMED)
    chunks = tl.cdiv(n_words, BLOCK)
    lane = tl.arange(0, BLOCK)
    chunk = tl.program_id(0)
    n_chunks = tl.load(n_fetch) * chunks
    while chunk < n_chunks * repeat:  # `for` over a device number fails in the interpreter with NumPy 2.4
        i = (chunk // chunks) % tl.maximum(n_chunks // chunks, 1)
        word = (chunk % chunks) * BLOCK + lane  # [BLOCK]
        # Parts start at multiples of 256 bytes: saying so makes each thread's load 16 bytes wide.
        reads = tl.multiple_of((tl.load(source + i) + first).to(tl.pointer_type(tl.int64)), 16)
        writes = tl.multiple_of((tl.load(target + i) + first).to(tl.pointer_type(tl.int64)), 16)
        tl.store(writes + word, tl.load(reads + word, mask=word < n_words), mask=word < n_words)
        chunk += tl.num_programs(0)
    if n_chunks > 0:
        note_fetch(times, begin, TIMED)


def fetch(
    source: torch.Tensor,
    target: torch.Tensor,
    n_fetch: torch.Tensor,
    n_bytes: int,
    launch: FetchLaunch = FETCH_LAUNCH,
    *,
    first: int = 0,
    times: torch.Tensor | None = None,
    repeat: int = 1,
) -> None:
    """Copy `n_bytes` of n_fetch[0] spans, from byte `first` on, between addresses (int64 [n] each) that the device can read and write.

    Addresses are multiples of 16.
    """
    assert n_bytes % SPAN_ALIGNMENT == 0
    assert first % SPAN_ALIGNMENT == 0
    fetch_kernel[(launch.n_programs,)](
        source,
        target,
        n_fetch,
        first,
        n_bytes // 8,
        source if times is None else times,
        repeat,
        BLOCK=launch.block_words,
        TIMED=times is not None,
        num_warps=launch.num_warps,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    return [
        CompileCase(
            name="fetch",
            kernel=fetch_kernel,
            types={
                "source": "*i64",
                "target": "*i64",
                "n_fetch": "*i32",
                "first": "i32",
                "n_words": "i32",
                "times": "*i64",
                "repeat": "i32",
            },
            constants={"BLOCK": FETCH_LAUNCH.block_words, "TIMED": False},
            num_warps=FETCH_LAUNCH.num_warps,
            divisible=("first", "n_words"),
        )
    ]
