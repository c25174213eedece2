"""IQ2_S: 256 elements; each eight have an entry of 1,024 and a byte of signs, each 16 a 4-bit scale; value = d (2 scale + 1) / 8 number.

The lower eight bits of an entry's index lie in `low`, the upper two in `high`: a byte of it serves 32 elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant import grids
from hotset.quant.bits import bytes_of
from hotset.quant.codebook import SIGNED_ZERO, entry_at, iq2_word, levels, scaled_numbers, signs, words_of_bytes
from hotset.quant.iq2_xs import eighths_of_16, scale_of_16, scale_of_half
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    low = words_of_bytes(fields["low"])
    upper = (fields["high"][..., None] >> np.array([0, 2, 4, 6], np.uint8) & 3).astype(np.uint16)
    numbers = levels("iq2_s")[low | (upper.reshape(low.shape) << 8)] * signs(bytes_of(fields["sign"]))
    return scaled_numbers(eighths_of_16(fields), numbers)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    @cache
    def entry(j: int) -> Any:
        return block.entry(e.or_(e.byte(block.u32("low"), j), e.shl(e.bits(block.u8("high"), 2 * j, 2), 8)))

    def sub(half: int) -> Any:
        def word(i: int) -> Any:
            j = 2 * half + i // 2
            return e.apply(iq2_word, entry(j), i % 2, e.byte(block.u32("sign"), j))

        return e.sub(16 * half, word, 4, scale=lambda: scale_of_half(e, block, half), offset=SIGNED_ZERO)

    yield e.chunk(sub(0), sub(1))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base + 2048, row, padded_rows, COLS // 256, 0, 8, tl.int32)
    sign = plane(base + 2048, row, padded_rows, COLS // 256, 32, 8, tl.int32)
    high = plane(base + 2048, row, padded_rows, COLS // 256, 64, 8, tl.uint8)
    upper = (tl.load(high + unit * 16).to(tl.int32) >> (i // 2 * 2)) & 3
    index = ((tl.load(low + unit * 16) >> (i // 2 * 8)) & 255) | (upper << 8)
    return iq2_word(entry_at(base, index), i % 2, tl.load(sign + unit * 16) >> (i // 2 * 8))


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return scale_of_16(base + 2048, row, s, padded_rows, COLS, 72)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 32, 16, 64)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 32, 16, 64)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 32, 16, 64, 0)


IQ2_S = QuantFormat(
    name="IQ2_S",
    ggml_type=22,
    block=256,
    block_bytes=82,
    planes=(
        Plane("low", "<u4", 8, 2),
        Plane("sign", "<u4", 8, 34),
        Plane("high", "u1", 8, 66),
        Plane("scale", "u1", 8, 74),
        Plane("block_scale", "<f2", 1, 0, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=8,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
    table=grids.packed("iq2_s"),
)
