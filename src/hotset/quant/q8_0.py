"""Q8_0: 32 elements int8 with one float16 scale d; value = d q."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, scaled
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.tiles import bytes_of_words, ordered, plane_rows, scale_of, scaled_tile
from hotset.quant.triton import dot4, jit, plane, tl, word_of


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled(fields["block_scale"], bytes_of(fields["low"]).view(np.int8), 0)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:  # q + 128: the host's byte products want one unsigned side
        return e.xor(block.u32("low", i), 0x80808080)

    yield e.chunk(e.sub(0, word, 8, scale=lambda: block.f16("block_scale"), offset=128, wide=True))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    low = plane(base, row, padded_rows, COLS // 32, 0, 8, tl.int32)
    scale = plane(base, row, padded_rows, COLS // 32, 32, 1, tl.float16)
    q = (tl.load(low + k // 4 * 16) << (24 - 8 * (k % 4))) >> 24
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
    xq, xd, _, _ = activation
    low = plane(base, row, padded_rows, COLS // 32, 0, 8, tl.int32) + unit * (8 * 16)
    scale = plane(base, row, padded_rows, COLS // 32, 32, 1, tl.float16) + unit * 16
    x = xq.to(tl.pointer_type(tl.int64)) + unit * 4
    total = tl.zeros(acc.shape, tl.int32)
    for i in tl.static_range(4):
        pair = tl.load(x + i, mask=ok, other=0)
        for half in tl.static_range(2):
            word = tl.load(low + (2 * i + half) * 16, mask=ok, other=0)
            total = dot4(word, word_of(pair, half), total, True, DP4A)
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
    low = plane_rows(base, first, padded_rows, COLS // 32, 0, 8, tl.int32, R)[:, None]
    d = plane_rows(base, first, padded_rows, COLS // 32, 32, 1, tl.float16, R)
    word = tl.load(low + (step * 8 + tl.arange(0, 8)[None, :]) * 16)
    value = bytes_of_words(word ^ -0x7F7F7F80, 0x00FF00FF)  # q + 128
    return ordered(scaled_tile(value, scale_of(d + step * 16), 1152), R, 32, ORDER)


Q8_0 = QuantFormat(
    name="Q8_0",
    ggml_type=8,
    block=32,
    block_bytes=34,
    planes=(Plane("low", "<u4", 8, 2), Plane("block_scale", "<f2", 1, 0)),
    values=_values,
    chunks=_chunks,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
