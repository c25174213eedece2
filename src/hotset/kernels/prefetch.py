"""Bring guessed experts before their router has decided: the bus is idle while a layer computes all but its experts.

The spans come until that layer's lookup begins. What came lies in guess areas; the fetch takes it from there and the rest from the host, so
a wrong guess costs idle time of the bus and the few microseconds in which what is under way arrives. kernels/guess.py says what is guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import next_power_of_2
from hotset.kernels.guess import N_GUESSES
from hotset.quant.layout import SPAN_ALIGNMENT
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.guess import GuessList


@dataclass(frozen=True)
class PrefetchLaunch:
    """How the copy is spread: as many bytes under way as fill the bus and no more, for the fetch waits for them. `block_words` is also the fetch's."""

    n_programs: int = 16
    block_words: int = 2048
    num_warps: int = 8


PREFETCH_LAUNCH = PrefetchLaunch()
# What a read of host memory takes when the bus is just full: 8 programs reached 36 of 50 GB/s (docs/log.md).
READ_S = 3.6e-6
# A virtual machine may name a bus that is slower than it is.
FEWEST = 4


def launch_for(bus_rate: float | None) -> PrefetchLaunch:
    """The launch for a bus of so many bytes per second on the wire, None where that is not known.

    A slower bus is full with fewer bytes under way, and more of them would only hold up the fetch that waits for wrong ones.
    """
    if not bus_rate:
        return PREFETCH_LAUNCH
    programs = next_power_of_2(math.ceil(bus_rate * READ_S / (PREFETCH_LAUNCH.block_words * 8)))
    return replace(PREFETCH_LAUNCH, n_programs=min(max(programs, FEWEST), PREFETCH_LAUNCH.n_programs))


@jit(do_not_specialize=["layer"])
def prefetch_kernel(
    source: tl.tensor,
    area: tl.tensor,
    calls: tl.tensor,  # int32 [layers]
    expected: tl.tensor,  # int32 [1], the layer's lookups when the guess was made
    done: tl.tensor,
    layer: tl.tensor,
    n_words: tl.tensor,  # 8-byte words of a span
    repeat: tl.tensor,  # copies of each block: more than one imitates a slower bus
    BLOCK: tl.constexpr,
    N_PAD: tl.constexpr,
) -> None:
    lane = tl.arange(0, BLOCK)
    n = tl.sum((tl.load(source + tl.arange(0, N_PAD)) != 0).to(tl.int32), 0)
    blocks = tl.cdiv(n_words, BLOCK)
    before = tl.load(expected)
    # A plain load would be one for each thread, and some might see the lookup's mark a turn before others: an atomic is one for all.
    block = tl.program_id(0)
    count = 0
    going = (block < n * blocks) & (tl.atomic_add(calls + layer, 0) == before)
    while going:
        word = (block % blocks) * BLOCK + lane
        reads = tl.multiple_of(tl.load(source + block // blocks).to(tl.pointer_type(tl.int64)), 16)
        writes = tl.multiple_of(tl.load(area + block // blocks).to(tl.pointer_type(tl.int64)), 16)
        again = 0
        while again < repeat:
            tl.store(writes + word, tl.load(reads + word, mask=word < n_words), mask=word < n_words)
            again += 1
        count += 1
        block += tl.num_programs(0)
        going = (block < n * blocks) & (tl.atomic_add(calls + layer, 0) == before)
    tl.store(done + tl.program_id(0), count)


@jit
def blocks_brought(done: tl.tensor, PROGRAMS: tl.constexpr) -> tl.tensor:
    """Blocks of the guesses, one after the other, that came without a gap; `done` int32 [PROGRAMS]."""
    program = tl.arange(0, PROGRAMS)
    return tl.min(tl.load(done + program) * PROGRAMS + program, 0)


@jit
def words_ahead(
    guessed: tl.tensor,  # int64 [N_PAD], sources of the guesses
    brought: tl.tensor,  # see blocks_brought
    wanted: tl.tensor,  # the source of a span
    n_words: tl.tensor,  # of the whole span
    BLOCK: tl.constexpr,
    N_PAD: tl.constexpr,
) -> tl.tensor:
    """Words of a span that came ahead without a gap from its first on, and the number of its guess."""
    g = tl.arange(0, N_PAD)
    words = tl.minimum(tl.maximum(brought - g * tl.cdiv(n_words, BLOCK), 0) * BLOCK, n_words)
    same = guessed == wanted
    return tl.sum(tl.where(same, words, 0), 0), tl.sum(tl.where(same, g, 0), 0)


def prefetch(
    guesses: GuessList,
    calls: torch.Tensor,
    layer: int,
    n_bytes: int,
    launch: PrefetchLaunch = PREFETCH_LAUNCH,
    *,
    repeat: int = 1,
) -> None:
    """Copy the guessed spans of `n_bytes` to their areas until the lookup of `layer`, which `calls` int32 [layers] counts, begins."""
    assert n_bytes % SPAN_ALIGNMENT == 0
    assert len(guesses.done) == launch.n_programs
    prefetch_kernel[(launch.n_programs,)](
        guesses.source,
        guesses.area,
        calls,
        guesses.calls,
        guesses.done,
        layer,
        n_bytes // 8,
        repeat,
        BLOCK=launch.block_words,
        N_PAD=N_GUESSES,
        num_warps=launch.num_warps,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("source", "area"), "*i64") | dict.fromkeys(("calls", "expected", "done"), "*i32")
    return [
        CompileCase(
            name="prefetch",
            kernel=prefetch_kernel,
            types=types | dict.fromkeys(("layer", "n_words", "repeat"), "i32"),
            constants={"BLOCK": PREFETCH_LAUNCH.block_words, "N_PAD": N_GUESSES},
            num_warps=PREFETCH_LAUNCH.num_warps,
            divisible=("n_words",),
        )
    ]
