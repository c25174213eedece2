"""Q4_0: 32 elements, one float16 scale d; byte j holds element j in its low and element j + 16 in its high nibble; value = d (q - 8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles, scaled
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.tiles import bytes_of_words, ordered, plane_rows, scale_of, scaled_tile, side_by_side
from hotset.quant.triton import dot4, jit, nibble, plane, tl, word_of


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled(fields["block_scale"], join_nibbles(bytes_of(fields["low"])), 8)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        return e.nibble(block.u32("low", i % 4), high=i >= 4)

    yield e.chunk(e.sub(0, word, 8, scale=lambda: block.f16("block_scale"), offset=8))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32)
    scale = plane(base, row, padded_rows, COLS // 32, 16, 1, tl.float16)
    word = tl.load(low + (k // 32 * 4 + k % 16 // 4) * 16)
    q = nibble(word, k, k % 32 // 16) - 8
    return tl.load(scale + k // 32 * 16).to(tl.float32) * q.to(tl.float32)


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
    xq, xd, xh, _ = activation
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32) + unit * (4 * 16)
    scale = plane(base, row, padded_rows, COLS // 32, 16, 1, tl.float16) + unit * 16
    x = xq.to(tl.pointer_type(tl.int64)) + unit * 4
    lows = tl.zeros(acc.shape, tl.int32)
    highs = tl.zeros(acc.shape, tl.int32)
    for i in tl.static_range(2):
        first = tl.load(x + i, mask=ok, other=0)
        second = tl.load(x + 2 + i, mask=ok, other=0)
        for half in tl.static_range(2):
            word = tl.load(low + (2 * i + half) * 16, mask=ok, other=0)
            lows = dot4(word & 0x0F0F0F0F, word_of(first, half), lows, False, DP4A)
            highs = dot4(word & -0x0F0F0F10, word_of(second, half), highs, False, DP4A)  # 16 times too large
    offset = 8 * (tl.load(xh + 2 * unit, mask=ok, other=0) + tl.load(xh + 2 * unit + 1, mask=ok, other=0))
    total = lows + (highs >> 4) - offset
    d = tl.load(scale, mask=ok, other=0).to(tl.float32)
    return acc + total.to(tl.float32) * (d * tl.load(xd + unit, mask=ok, other=0))


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
    low = plane_rows(base, first, padded_rows, COLS // 32, 0, 4, tl.int32, R)[:, None]
    d = plane_rows(base, first, padded_rows, COLS // 32, 16, 1, tl.float16, R)
    word = tl.load(low + (step * 4 + tl.arange(0, 4)[None, :]) * 16)
    value = side_by_side(bytes_of_words(word, 0x000F000F), bytes_of_words(word >> 4, 0x000F000F))
    value = tl.reshape(value, [R, 8, 2, 2])
    return ordered(scaled_tile(value, scale_of(d + step * 16), 1032), R, 32, ORDER)


Q4_0 = QuantFormat(
    name="Q4_0",
    ggml_type=2,
    block=32,
    block_bytes=18,
    planes=(Plane("low", "<u4", 4, 2), Plane("block_scale", "<f2", 1, 0)),
    values=_values,
    chunks=_chunks,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
