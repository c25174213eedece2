"""What the formats' `tile` functions share: weights as float16 operands of tensor cores, unpacked without leaving the registers.

`tile(base, first, step, padded_rows, COLS, R, ORDER)`: float16 [R, tile_unit], `GAIN` times the elements step * tile_unit, ... of rows
    first, ..., first + R - 1 (multiples of 16) of the matrix whose planes begin at `base`; F16 and BF16 are not multiplied. COLS is a
    multiple of 32.
The gain keeps the scales of small weights clear of float16's subnormal numbers; weights may be as large as 4,095.

A sum over k does not mind its order, so each 32 elements stand in the order in which the tensor core's operand layout wants a thread to
hold the bytes of its words: then no thread needs another's. Activations are stored in the same order (kernels/half.py).
Word w of four, byte b, for an element 16 e + 4 w + b:   ORDER_WARPGROUP: e, b % 2, w, b // 2;   ORDER_WARP: w, e, b % 2, b // 2.
"""

from __future__ import annotations

from hotset.quant.triton import jit, tl

GAIN = 16  # also in `scale_of`
ORDER_WARPGROUP = 0  # wgmma (Hopper): a thread holds two neighbours
ORDER_WARP = 1  # mma (all others): Triton gives a thread eight neighbours where bytes are unpacked


@jit
def plane_rows(
    base: tl.tensor,
    first: tl.tensor,
    padded_rows: tl.tensor,
    N_BLOCKS: tl.constexpr,
    BEFORE: tl.constexpr,  # bytes of a block in the planes before this one
    COUNT: tl.constexpr,
    UNIT: tl.constexpr,
    R: tl.constexpr,
) -> tl.tensor:
    """Where the first unit of a plane lies for rows first, ..., first + R - 1, [R]; units of a row, COUNT a block, are 16 apart."""
    start = base + tl.cast(padded_rows, tl.int64) * (N_BLOCKS * BEFORE)
    row = tl.arange(0, R)
    own = start.to(tl.pointer_type(UNIT)) + first.to(tl.int64) * (N_BLOCKS * COUNT)
    return own + (row // 16 * (16 * N_BLOCKS * COUNT) + row % 16)


@jit
def scale_of(scale: tl.tensor) -> tl.tensor:
    """Load a plane's float16 scales as float32, times GAIN."""
    return tl.load(scale).to(tl.float32) * 16


@jit
def position_of(k: tl.tensor, ORDER: tl.constexpr) -> tl.tensor:
    """Where element k stands."""
    if ORDER == 0:
        at = (k & 16) | (k % 2 * 8) | (k % 16 // 4 * 2) | (k % 4 // 2)
    else:
        at = (k % 16 // 4 * 8) | (k % 32 // 16 * 4) | (k % 2 * 2) | (k % 4 // 2)
    return k // 32 * 32 + at


@jit
def element_at(position: tl.tensor, ORDER: tl.constexpr) -> tl.tensor:
    """Which element stands there: the inverse of `position_of`."""
    if ORDER == 0:
        k = (position & 16) | (position % 8 // 2 * 4) | (position % 2 * 2) | (position % 16 // 8)
    else:
        k = (position % 8 // 4 * 16) | (position % 32 // 8 * 4) | (position % 2 * 2) | (position % 4 // 2)
    return position // 32 * 32 + k


@jit
def pair_of_halves(word: tl.tensor) -> tl.tensor:
    """Take two integers below 1,024 out of a word's halves as float16, plus 1,024: [..., 2]."""
    bits = word | 0x64006400
    low = (bits & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = ((bits >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(low, high)


@jit
def bytes_of_words(word: tl.tensor, MASK: tl.constexpr) -> tl.tensor:
    """The four masked bytes of words [R, W] as float16, plus 1,024: [R, W, b % 2, b // 2]. MASK has a byte's mask in both halves."""
    pairs = tl.join(pair_of_halves(word & MASK), pair_of_halves((word >> 8) & MASK))  # [R, W, b // 2, b % 2]
    return tl.permute(pairs, (0, 1, 3, 2))


@jit
def ordered(value: tl.tensor, R: tl.constexpr, K: tl.constexpr, ORDER: tl.constexpr) -> tl.tensor:
    """Bring [R, words, b % 2, b // 2] with the words of K elements into the operand's order: [R, K]."""
    value = tl.reshape(value, [R, K // 32, 2, 4, 2, 2])
    value = tl.permute(value, (0, 1, 2, 4, 3, 5)) if ORDER == 0 else tl.permute(value, (0, 1, 3, 2, 4, 5))
    return tl.reshape(value, [R, K])


@jit
def in_order(value: tl.tensor, M: tl.constexpr, R: tl.constexpr, ORDER: tl.constexpr) -> tl.tensor:
    """Bring rows [M, R] of elements in their own order, R a multiple of 32, into the operand's order."""
    value = tl.reshape(value, [M, R // 32, 2, 4, 2, 2])  # of 32 columns: e, w, b // 2, b % 2
    value = tl.permute(value, (0, 1, 2, 5, 3, 4)) if ORDER == 0 else tl.permute(value, (0, 1, 3, 2, 5, 4))
    return tl.reshape(value, [M, R])


@jit
def side_by_side(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Put words after words: two [R, W, 2, 2] -> [R, 2, W, 2, 2]."""
    return tl.permute(tl.join(a, b), (0, 4, 1, 2, 3))


@jit
def scaled_tile(value: tl.tensor, scale: tl.tensor, ZERO: tl.constexpr) -> tl.tensor:
    """(value - ZERO) scale; value [R, W, 2, 2], scale float32 [R]."""
    return (value - ZERO) * scale.to(tl.float16)[:, None, None, None]
