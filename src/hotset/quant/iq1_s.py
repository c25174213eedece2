"""IQ1_S: 256 elements; each eight have an entry of 2,048, each 32 a 3-bit scale and a shift; value = d (2 scale + 1) (number +- 1/8).

The lower eight bits of an entry's index lie in `low`; a 16-bit word of `high` has the upper three of four entries, the scale and the sign of
the shift.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant import grids
from hotset.quant.codebook import IQ1_ZERO, entry_at, iq1_word, levels, scaled_numbers, words_of_bytes
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile

THREES = np.array([0, 3, 6, 9], np.uint16)


def _values(fields: Fields) -> NDArray[np.float32]:
    low, high = words_of_bytes(fields["low"]), fields["high"]
    upper = (high[..., None] >> THREES & 7).reshape(low.shape)
    numbers = levels("iq1")[low | (upper << 8)].reshape(*high.shape, 32)
    shift = np.where(high >> 15, np.float32(-0.125), np.float32(0.125))
    scale = fields["block_scale"].astype(np.float32) * (2 * (high >> 12 & 7) + 1).astype(np.float32)
    return scaled_numbers(scale, numbers + shift[..., None])


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    high = block.u16("high")

    @cache
    def entry(j: int) -> Any:
        return block.entry(e.or_(e.byte(block.u32("low"), j), e.shl(e.bits(high, 3 * j, 3), 8)))

    def word(i: int) -> Any:
        return e.apply(iq1_word, entry(i // 2), i % 2, e.shr(high, 15))

    def scale() -> Any:
        odd = e.or_(e.shl(e.bits(high, 12, 3), 1), e.splat(1))
        return e.fmul(e.fmul(block.f16("block_scale"), e.float_splat(0.125)), e.to_float(odd))

    yield e.chunk(e.sub(0, word, 8, scale=scale, offset=IQ1_ZERO))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base + 4096, row, padded_rows, COLS // 256, 0, 8, tl.int32)
    high = tl.load(plane(base + 4096, row, padded_rows, COLS // 256, 32, 8, tl.uint16) + unit * 16).to(tl.int32)
    index = ((tl.load(low + unit * 16) >> (i // 2 * 8)) & 255) | (((high >> (i // 2 * 3)) & 7) << 8)
    return iq1_word(entry_at(base, index), i % 2, high >> 15)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    high = plane(base + 4096, row, padded_rows, COLS // 256, 32, 8, tl.uint16)
    d = plane(base + 4096, row, padded_rows, COLS // 256, 48, 1, tl.float16)
    odd = ((tl.load(high + s * 16).to(tl.int32) >> 12) & 7) * 2 + 1
    return tl.load(d + s // 8 * 16).to(tl.float32) * 0.125 * odd.to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 32, 32, 9)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 32, 32, 9)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 32, 32, 9, 0)


IQ1_S = QuantFormat(
    name="IQ1_S",
    ggml_type=19,
    block=256,
    block_bytes=50,
    planes=(
        Plane("low", "<u4", 8, 2),
        Plane("high", "<u2", 8, 34),
        Plane("block_scale", "<f2", 1, 0, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=8,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
    table=grids.packed("iq1"),
)
