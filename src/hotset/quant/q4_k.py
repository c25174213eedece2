"""Q4_K: 256 elements in eight sub-blocks of 32; 6-bit scales and minima, float16 d and dmin; value = d scale q - dmin minimum.

32 bytes hold two sub-blocks: low nibbles the first, high nibbles the second. The 12 bytes of 6-bit numbers become 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, nibbles_by_64, pack_six_bits, scaled_with_minimum, unpack_six_bits
from hotset.quant.layout import Bytes, Fields, Plane, QuantFormat
from hotset.quant.tiles import bytes_of_words, ordered, plane_rows, scale_of, side_by_side
from hotset.quant.triton import dot4, jit, nibble, plane, tl, word_of


def split(blocks: Bytes) -> dict[str, NDArray[Any]]:
    scale, minimum = unpack_six_bits(blocks[..., 4:16])
    return {"scale": scale, "minimum": minimum}


def join(fields: Fields, blocks: Bytes) -> None:
    blocks[..., 4:16] = pack_six_bits(fields["scale"], fields["minimum"])


def sub_block(e: Any, block: Any, s: int, word: Any) -> Any:
    """Sub-block `s` of two with its scale and minimum; Q5_K shares it."""

    def scale() -> Any:
        return e.fmul(block.f16("block_scale", 0), e.to_float(block.u8("scale", s)))

    def minimum() -> Any:
        return e.fmul(block.f16("block_scale", 1), e.to_float(block.u8("minimum", s)))

    return e.sub(32 * s, word, 8, scale=scale, minimum=minimum)


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled_with_minimum(fields, nibbles_by_64(bytes_of(fields["low"])))


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def words(high: int) -> Any:
        return lambda i: e.nibble(block.u32("low", i), high=high == 1)

    yield e.chunk(*(sub_block(e, block, s, words(s)) for s in range(2)))


@jit
def scaled_load(
    q: tl.tensor,
    base: tl.tensor,
    row: tl.tensor,
    k: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    BEFORE: tl.constexpr,
) -> tl.tensor:
    """(d scale) q - dmin minimum, rounded after each step; Q5_K shares it. BEFORE: bytes of a block before the plane `scale`."""
    scale = plane(base, row, padded_rows, COLS // 256, BEFORE, 8, tl.uint8)
    minimum = plane(base, row, padded_rows, COLS // 256, BEFORE + 8, 8, tl.uint8)
    d = plane(base, row, padded_rows, COLS // 256, BEFORE + 16, 2, tl.float16) + k // 256 * 32
    step = tl.load(d).to(tl.float32) * tl.load(scale + k // 32 * 16).to(tl.float32)
    floor = tl.load(d + 16).to(tl.float32) * tl.load(minimum + k // 32 * 16).to(tl.float32)
    return step * q.to(tl.float32) - floor


@jit
def scaled_dot(
    acc: tl.tensor,
    first: tl.tensor,  # int32 [R, S], the exact products of a unit's two sub-blocks
    second: tl.tensor,
    base: tl.tensor,
    row: tl.tensor,
    unit: tl.tensor,
    ok: tl.tensor,
    xd: tl.tensor,
    xm: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    BEFORE: tl.constexpr,
) -> tl.tensor:
    """Sum acc + d sum (scale product xd) - dmin sum (minimum xm); Q5_K shares it. Products times scales stay below 2^24, so exact."""
    scale = plane(base, row, padded_rows, COLS // 256, BEFORE, 8, tl.uint8) + unit * 32
    minimum = plane(base, row, padded_rows, COLS // 256, BEFORE + 8, 8, tl.uint8) + unit * 32
    d = plane(base, row, padded_rows, COLS // 256, BEFORE + 16, 2, tl.float16) + unit // 4 * 32
    first = first * tl.load(scale, mask=ok, other=0).to(tl.int32)
    second = second * tl.load(scale + 16, mask=ok, other=0).to(tl.int32)
    xd += 2 * unit
    xm += 2 * unit
    product = first.to(tl.float32) * tl.load(xd, mask=ok, other=0)
    product += second.to(tl.float32) * tl.load(xd + 1, mask=ok, other=0)
    floor = tl.load(minimum, mask=ok, other=0).to(tl.float32) * tl.load(xm, mask=ok, other=0)
    floor += tl.load(minimum + 16, mask=ok, other=0).to(tl.float32) * tl.load(xm + 1, mask=ok, other=0)
    acc += tl.load(d, mask=ok, other=0).to(tl.float32) * product
    return acc - tl.load(d + 16, mask=ok, other=0).to(tl.float32) * floor


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    low = plane(base, row, padded_rows, COLS // 256, 0, 32, tl.int32)
    word = tl.load(low + (k // 64 * 8 + k % 32 // 4) * 16)
    q = nibble(word, k, k % 64 // 32)
    return scaled_load(q, base, row, k, padded_rows, COLS, 128)


@jit
def _dot(
    acc: tl.tensor,
    base: tl.tensor,
    row: tl.tensor,
    unit: tl.tensor,
    ok: tl.tensor,
    activation: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    DP4A: tl.constexpr,
) -> tl.tensor:
    xq, xd, _, xm = activation
    low = plane(base, row, padded_rows, COLS // 256, 0, 32, tl.int32) + unit * (8 * 16)
    x = xq.to(tl.pointer_type(tl.int64)) + unit * 8
    lows = tl.zeros(acc.shape, tl.int32)
    highs = tl.zeros(acc.shape, tl.int32)
    for i in tl.static_range(4):
        first = tl.load(x + i, mask=ok, other=0)
        second = tl.load(x + 4 + i, mask=ok, other=0)
        for half in tl.static_range(2):
            word = tl.load(low + (2 * i + half) * 16, mask=ok, other=0)
            lows = dot4(word & 0x0F0F0F0F, word_of(first, half), lows, False, DP4A)
            highs = dot4(word & -0x0F0F0F10, word_of(second, half), highs, False, DP4A)  # 16 times too large
    return scaled_dot(acc, lows, highs >> 4, base, row, unit, ok, xd, xm, padded_rows, COLS, 128)


@jit
def scaled_tile_with_minimum(
    low: tl.tensor,  # [R, W, 2, 2], the quants of a sub-block plus 1,024
    high: tl.tensor,  # those of the next
    base: tl.tensor,
    first: tl.tensor,
    step: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    BEFORE: tl.constexpr,
    ZERO: tl.constexpr,
    R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:
    """(q - ZERO) d scale + (ZERO d scale - dmin minimum): q around 0 keeps float16's rounding of the scale small. Q5_K shares it."""
    scale = plane_rows(base, first, padded_rows, COLS // 256, BEFORE, 8, tl.uint8, R) + step * 32
    minimum = plane_rows(base, first, padded_rows, COLS // 256, BEFORE + 8, 8, tl.uint8, R) + step * 32
    block = plane_rows(base, first, padded_rows, COLS // 256, BEFORE + 16, 2, tl.float16, R) + step // 4 * 32
    d = scale_of(block)
    dmin = scale_of(block + 16)
    a = d * tl.load(scale).to(tl.float32)
    b = d * tl.load(scale + 16).to(tl.float32)
    a_middle = ZERO * a - dmin * tl.load(minimum).to(tl.float32)
    b_middle = ZERO * b - dmin * tl.load(minimum + 16).to(tl.float32)
    value = side_by_side(low, high) - (1024 + ZERO)  # [R, 2, W, 2, 2]
    factor = tl.join(a.to(tl.float16), b.to(tl.float16))[:, :, None, None, None]
    middle = tl.join(a_middle.to(tl.float16), b_middle.to(tl.float16))[:, :, None, None, None]
    return ordered(tl.fma(value, factor, middle), R, 64, ORDER)


@jit
def _tile(
    base: tl.tensor,
    first: tl.tensor,
    step: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:
    low = plane_rows(base, first, padded_rows, COLS // 256, 0, 32, tl.int32, R)[:, None]
    word = tl.load(low + (step * 8 + tl.arange(0, 8)[None, :]) * 16)
    a = bytes_of_words(word, 0x000F000F)
    b = bytes_of_words(word >> 4, 0x000F000F)
    return scaled_tile_with_minimum(a, b, base, first, step, padded_rows, COLS, 128, 8, R, ORDER)


Q4_K = QuantFormat(
    name="Q4_K",
    ggml_type=12,
    block=256,
    block_bytes=144,
    planes=(
        Plane("low", "<u4", 32, 16),
        Plane("scale", "u1", 8, 4, "six-bit scale"),
        Plane("minimum", "u1", 8, 4, "six-bit minimum"),
        Plane("block_scale", "<f2", 2, 0, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=4,
    split=split,
    join=join,
    load=_load,
    dot=_dot,
    unit=64,
    tile=_tile,
    tile_unit=64,
)
