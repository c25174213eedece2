"""Q5_K: Q4_K with a fifth bit per element: bit s of byte j of `high` belongs to element j of sub-block s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, nibbles_by_64, scaled_with_minimum
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.q4_k import join, scaled_dot, scaled_load, scaled_tile_with_minimum, split, sub_block
from hotset.quant.tiles import bytes_of_words, plane_rows
from hotset.quant.triton import dot4, jit, nibble, plane, tl, word_of


def _values(fields: Fields) -> NDArray[np.float32]:
    fifth = np.unpackbits(bytes_of(fields["high"])[..., None, :], axis=-2, count=None, bitorder="little")
    q = nibbles_by_64(bytes_of(fields["low"]))
    return scaled_with_minimum(fields, q | (fifth.reshape(q.shape) << 4))


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def words(s: int) -> Any:
        def word(i: int) -> Any:
            fifth = e.bit_of_step(block.u32("high", i), s, block.step, 2, to=4)
            return e.or_(e.nibble(block.u32("low", i), high=s == 1), fifth)

        return word

    yield e.chunk(*(sub_block(e, block, s, words(s)) for s in range(2)))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    low = plane(base, row, padded_rows, COLS // 256, 0, 32, tl.int32)
    high = plane(base, row, padded_rows, COLS // 256, 128, 8, tl.int32)
    word = tl.load(low + (k // 64 * 8 + k % 32 // 4) * 16)
    bits = tl.load(high + (k // 256 * 8 + k % 32 // 4) * 16)
    q = nibble(word, k, k % 64 // 32) | (((bits >> (8 * (k % 4) + k % 256 // 32)) & 1) << 4)
    return scaled_load(q, base, row, k, padded_rows, COLS, 160)


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
    high = plane(base, row, padded_rows, COLS // 256, 128, 8, tl.int32) + unit // 4 * (8 * 16)
    shift = unit % 4 * 2
    x = xq.to(tl.pointer_type(tl.int64)) + unit * 8
    lows = tl.zeros(acc.shape, tl.int32)
    highs = tl.zeros(acc.shape, tl.int32)
    for i in tl.static_range(4):
        first = tl.load(x + i, mask=ok, other=0)
        second = tl.load(x + 4 + i, mask=ok, other=0)
        for half in tl.static_range(2):
            word = tl.load(low + (2 * i + half) * 16, mask=ok, other=0)
            bits = tl.load(high + (2 * i + half) * 16, mask=ok, other=0) >> shift
            a = (word & 0x0F0F0F0F) | ((bits & 0x01010101) << 4)
            b = ((word >> 4) & 0x0F0F0F0F) | ((bits & 0x02020202) << 3)
            lows = dot4(a, word_of(first, half), lows, False, DP4A)
            highs = dot4(b, word_of(second, half), highs, False, DP4A)
    return scaled_dot(acc, lows, highs, base, row, unit, ok, xd, xm, padded_rows, COLS, 160)


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
    high = plane_rows(base, first, padded_rows, COLS // 256, 128, 8, tl.int32, R)[:, None]
    w = tl.arange(0, 8)[None, :]
    word = tl.load(low + (step * 8 + w) * 16)
    bits = tl.load(high + (step // 4 * 8 + w) * 16) >> (step % 4 * 2)
    a = bytes_of_words((word & 0x0F0F0F0F) | ((bits & 0x01010101) << 4), 0x001F001F)
    b = bytes_of_words(((word >> 4) & 0x0F0F0F0F) | ((bits & 0x02020202) << 3), 0x001F001F)
    return scaled_tile_with_minimum(a, b, base, first, step, padded_rows, COLS, 160, 16, R, ORDER)


Q5_K = QuantFormat(
    name="Q5_K",
    ggml_type=13,
    block=256,
    block_bytes=176,
    planes=(
        Plane("low", "<u4", 32, 48),
        Plane("high", "<u4", 8, 16, whole=True),
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
