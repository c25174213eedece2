"""Bring missed experts in: the GPU itself reads their spans from page-locked host memory.

target[i][b] = source[i][b] for the n_fetch spans of a request and the bytes of them that are asked for, b = first..first + n_bytes - 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.clock import note_fetch, now
from hotset.kernels.guess import N_GUESSES
from hotset.kernels.prefetch import PREFETCH_LAUNCH, blocks_brought, words_ahead
from hotset.quant.layout import SPAN_ALIGNMENT
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.guess import GuessList


@dataclass(frozen=True)
class FetchLaunch:
    """How the copy is spread. 8-16 blocks fill the bus, and many more would take a small card from other kernels.

    A chunk of BLOCK 8-byte words is 16 bytes times (words / 2 / threads) loads in flight for each thread.
    """

    n_programs: int = 16
    block_words: int = 2048
    num_warps: int = 8
    n_copiers: int = 32  # of what came ahead, from GPU memory


FETCH_LAUNCH = FetchLaunch()


# The first programs share every span, block by block, so that a single missed expert has the whole bus as well. Where spans may have
# come ahead in part, they bring the rest, and further programs copy what came from the guess areas.
@jit
def fetch_kernel(  # noqa: C901 - two roles of one launch
    source: tl.tensor,  # int64 [n], addresses
    target: tl.tensor,  # int64 [n], addresses
    n_fetch: tl.tensor,  # int32 [1]
    first: tl.tensor,  # 8-byte words of each span before the part
    n_words: tl.tensor,  # words of the part
    span_words: tl.tensor,  # words of a span
    times: tl.tensor,  # int64 [3], see clock.py; any pointer where not TIMED
    guesses: tl.tensor,  # see guess.GuessList; any pointers where not N_GUESSES
    areas: tl.tensor,
    done: tl.tensor,
    counts: tl.tensor,
    repeat: tl.tensor,  # copies of each block: more than one imitates a slower bus
    BLOCK: tl.constexpr,
    TIMED: tl.constexpr,
    ON_BUS: tl.constexpr,  # programs that read host memory
    N_GUESSES: tl.constexpr,
    N_DONE: tl.constexpr,
) -> None:
    begin = now(TIMED)
    lane = tl.arange(0, BLOCK)
    program = tl.program_id(0)
    n = tl.load(n_fetch)
    end = first + n_words
    i = 0
    if N_GUESSES > 0:
        guessed = tl.load(guesses + tl.arange(0, N_GUESSES))
        brought = blocks_brought(done, N_DONE)
    if program < ON_BUS:
        block = program
        needed = tl.zeros([1], tl.int64)
        while i < n:  # `for` over a device number fails in the interpreter with NumPy 2.4
            start = first
            if N_GUESSES > 0:
                ahead, _ = words_ahead(guessed, brought, tl.load(source + i), span_words, BLOCK, N_GUESSES)
                start = tl.minimum(tl.maximum(first, ahead), end)
                needed += ahead * 8
            # Parts start at multiples of 256 bytes: saying so makes each thread's load 16 bytes wide.
            reads = tl.multiple_of(tl.load(source + i).to(tl.pointer_type(tl.int64)), 16)
            writes = tl.multiple_of(tl.load(target + i).to(tl.pointer_type(tl.int64)), 16)
            blocks = tl.cdiv(end - start, BLOCK)
            while block < blocks * repeat:
                word = tl.multiple_of(start + (block % blocks) * BLOCK, 2) + lane  # [BLOCK]
                tl.store(writes + word, tl.load(reads + word, mask=word < end), mask=word < end)
                block += ON_BUS
            block -= blocks * repeat
            i += 1
        if N_GUESSES > 0:  # noqa: SIM102 - known when the kernel is compiled
            if (program == 0) & (first == 0):
                came = tl.sum(tl.load(done + tl.arange(0, N_DONE)), 0).to(tl.int64) * (BLOCK * 8)
                tl.store(counts, tl.load(counts) + came)
                tl.store(counts + 1, tl.load(counts + 1) + tl.sum(needed, 0))
    elif N_GUESSES > 0:
        while i < n:
            ahead, g = words_ahead(guessed, brought, tl.load(source + i), span_words, BLOCK, N_GUESSES)
            reads = tl.multiple_of(tl.load(areas + g).to(tl.pointer_type(tl.int64)), 16)
            writes = tl.multiple_of(tl.load(target + i).to(tl.pointer_type(tl.int64)), 16)
            stop = tl.multiple_of(tl.minimum(ahead, end), 2)
            at = first + (program - ON_BUS) * BLOCK
            while at < stop:
                word = tl.multiple_of(at, 2) + lane
                tl.store(writes + word, tl.load(reads + word, mask=word < stop), mask=word < stop)
                at += (tl.num_programs(0) - ON_BUS) * BLOCK
            i += 1
    if n > 0:
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
    span_bytes: int | None = None,
    guesses: GuessList | None = None,
    counts: torch.Tensor | None = None,
) -> None:
    """Copy `n_bytes` of n_fetch[0] spans, from byte `first` on, between addresses (int64 [n] each) that the device can read and write.

    Addresses are multiples of 16. What came ahead of spans of `span_bytes`, by `guesses`, is taken from there, and added to `counts`
    int64 [2] with the part that begins them.
    """
    assert n_bytes % SPAN_ALIGNMENT == 0
    assert first % SPAN_ALIGNMENT == 0
    fetch_kernel[(launch.n_programs + (launch.n_copiers if guesses else 0),)](
        source,
        target,
        n_fetch,
        first // 8,
        n_bytes // 8,
        (span_bytes or n_bytes) // 8,
        source if times is None else times,
        guesses.source if guesses else source,
        guesses.area if guesses else source,
        guesses.done if guesses else n_fetch,
        source if counts is None else counts,
        repeat,
        BLOCK=launch.block_words,
        TIMED=times is not None,
        ON_BUS=launch.n_programs,
        N_GUESSES=len(guesses.source) if guesses else 0,
        N_DONE=len(guesses.done) if guesses else 1,
        num_warps=launch.num_warps,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("source", "target", "times", "guesses", "areas", "counts"), "*i64")
    types |= {"n_fetch": "*i32", "done": "*i32"} | dict.fromkeys(("first", "n_words", "span_words", "repeat"), "i32")
    return [
        CompileCase(
            name=f"fetch{'-with-guesses' * (n_guesses > 0)}",
            kernel=fetch_kernel,
            types=types,
            constants={
                "BLOCK": FETCH_LAUNCH.block_words,
                "TIMED": False,
                "ON_BUS": FETCH_LAUNCH.n_programs,
                "N_GUESSES": n_guesses,
                "N_DONE": PREFETCH_LAUNCH.n_programs,
            },
            num_warps=FETCH_LAUNCH.num_warps,
            divisible=("first", "n_words", "span_words"),
        )
        for n_guesses in (0, N_GUESSES)
    ]
