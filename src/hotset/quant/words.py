"""Triton's `load`, `dot` and `tile` for formats that say how four elements come into the four bytes of a word.

Such a format has, beside its NumPy reference,
`word(base, row, unit, i, padded_rows, COLS, ASM)`: int32, the unsigned bytes q of elements UNIT * unit + 4 i, ..., + 3. row [R, 1]; unit
    and i broadcast against it. With ASM, i is a constant and inline assembly may be used.
`scale(base, row, s, padded_rows, COLS)`: float32, the scale of the elements SUB s, ... (SUB = 16 or 32), and for some `minimum` alike;
    value = scale (q - ZERO) - minimum.
A unit is what shares loaded words: in `dot` a thread takes a whole one, so that the compiler loads each word once.
"""

from __future__ import annotations

from hotset.quant.tiles import bytes_of_words, ordered
from hotset.quant.triton import dot4, jit, tl, word_of


@jit
def words_load(
    base: tl.tensor,
    row: tl.tensor,
    k: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    WORD: tl.constexpr,
    SCALE: tl.constexpr,
    MINIMUM: tl.constexpr,
    UNIT: tl.constexpr,
    SUB: tl.constexpr,
    ZERO: tl.constexpr,
) -> tl.tensor:
    """Round after each step, as the reference does."""
    word = WORD(base, row, k // UNIT, k % UNIT // 4, padded_rows, COLS, False)
    q = ((word >> (8 * (k % 4))) & 255) - ZERO
    value = SCALE(base, row, k // SUB, padded_rows, COLS) * q.to(tl.float32)
    if MINIMUM is not None:
        value -= MINIMUM(base, row, k // SUB, padded_rows, COLS)
    return value


@jit
def words_dot(
    acc: tl.tensor,
    base: tl.tensor,
    row: tl.tensor,
    unit: tl.tensor,
    ok: tl.tensor,
    activation: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    DP4A: tl.constexpr,
    WORD: tl.constexpr,
    SCALE: tl.constexpr,
    MINIMUM: tl.constexpr,
    UNIT: tl.constexpr,
    SUB: tl.constexpr,
    ZERO: tl.constexpr,
) -> tl.tensor:
    """Sum exact products of each SUB elements, times their scales."""
    xq, xd, xh, _ = activation
    unit = tl.minimum(unit, COLS // UNIT - 1)  # lanes past the end read the last unit and drop it
    x = xq.to(tl.pointer_type(tl.int64)) + unit * (UNIT // 8)
    total = tl.zeros(acc.shape, tl.float32)
    for block in tl.static_range(UNIT // 32):  # of activations: 32 elements with a scale
        part = tl.zeros(acc.shape, tl.float32)
        for sub in tl.static_range(32 // SUB):
            products = tl.zeros(acc.shape, tl.int32)
            for j in tl.static_range(SUB // 8):
                pair = tl.load(x + (4 * block + SUB // 8 * sub + j))
                for half in tl.static_range(2):
                    i = 8 * block + SUB // 4 * sub + 2 * j + half
                    word = WORD(base, row, unit, i, padded_rows, COLS, DP4A)
                    products = dot4(word, word_of(pair, half), products, False, DP4A)
            s = unit * (UNIT // SUB) + (32 // SUB * block + sub)
            sums = tl.load(xh + (unit * (UNIT // 16) + 2 * block + SUB // 16 * sub))
            if SUB == 32:
                sums += tl.load(xh + (unit * (UNIT // 16) + 2 * block + 1))
            if ZERO > 0:
                products -= ZERO * sums
            part += products.to(tl.float32) * SCALE(base, row, s, padded_rows, COLS)
            if MINIMUM is not None:
                part -= sums.to(tl.float32) * MINIMUM(base, row, s, padded_rows, COLS)
        total += part * tl.load(xd + (unit * (UNIT // 32) + block))
    return acc + tl.where(ok, total, 0.0)


@jit
def tile_factor(of: tl.tensor, base: tl.tensor, row: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, SUB: tl.constexpr) -> tl.tensor:  # fmt: skip
    """Take `of` (a `scale` or `minimum`) for the eight words of 32 elements: GAIN times, float32 [R, 8] or [R, 1]."""
    if SUB == 32:
        value = of(base, row, step, padded_rows, COLS)
    else:
        first = of(base, row, 2 * step, padded_rows, COLS)
        second = of(base, row, 2 * step + 1, padded_rows, COLS)
        value = tl.where(tl.arange(0, 8)[None, :] < 4, first, second)
    return value * 16


@jit
def words_tile(
    base: tl.tensor,
    first: tl.tensor,
    step: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    R: tl.constexpr,
    ORDER: tl.constexpr,
    WORD: tl.constexpr,
    SCALE: tl.constexpr,
    MINIMUM: tl.constexpr,
    UNIT: tl.constexpr,
    SUB: tl.constexpr,
    ZERO: tl.constexpr,
    MIDDLE: tl.constexpr,
) -> tl.tensor:
    """Take 32 elements of R rows. With a minimum (q - MIDDLE) scale + (MIDDLE scale - minimum): q around 0 keeps the scale's rounding small."""
    row = first + tl.arange(0, R)[:, None]
    i = step % (UNIT // 32) * 8 + tl.arange(0, 8)[None, :]
    word = WORD(base, row, step // (UNIT // 32), i, padded_rows, COLS, False)
    value = bytes_of_words(word, 0x00FF00FF)  # [R, 8, 2, 2], plus 1,024
    scale = tile_factor(SCALE, base, row, step, padded_rows, COLS, SUB)
    factor = scale.to(tl.float16)[:, :, None, None]
    if MINIMUM is None:
        value = (value - (1024 + ZERO)) * factor
    else:
        minimum = tile_factor(MINIMUM, base, row, step, padded_rows, COLS, SUB)
        middle = (MIDDLE * scale - minimum).to(tl.float16)[:, :, None, None]
        value = tl.fma(value - (1024 + MIDDLE), factor, middle)
    return ordered(value, R, 32, ORDER)
