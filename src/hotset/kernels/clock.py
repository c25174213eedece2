"""The GPU's own clock, so that a captured step can say how long its fetches took.

times int64 [layers, 3]: when the first program of the last fetch began and the last one ended (nanoseconds), and the sum of earlier ones.
"""

from __future__ import annotations

from hotset.quant.triton import jit, tl

TIME_COLUMNS = 3
NEVER = 2**62


@jit
def now(TIMED: tl.constexpr) -> tl.tensor:
    """Read the clock; its tick is about a microsecond on some devices."""
    time = tl.zeros([1], tl.int64)
    if TIMED:
        time = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l,l", [time], tl.int64, is_pure=False, pack=1)
    return tl.max(time, 0)


@jit
def note_fetch(times: tl.tensor, begin: tl.tensor, TIMED: tl.constexpr) -> None:
    """Widen the span of the running fetch to what this program saw of it."""
    if TIMED:
        tl.atomic_min(times, begin)
        tl.atomic_max(times + 1, now(TIMED))


@jit
def close_fetch(times: tl.tensor, TIMED: tl.constexpr) -> None:
    """Add the last fetch to the sum and make room for the next."""
    if TIMED:
        begin = tl.load(times)
        end = tl.load(times + 1)
        tl.store(times + 2, tl.load(times + 2) + tl.where(end > begin, end - begin, 0))
        tl.store(times, 4611686018427387904)  # NEVER
        tl.store(times + 1, 0)
