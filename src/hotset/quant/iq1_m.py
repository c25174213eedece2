"""IQ1_M: as IQ1_S with a scale for each 16 elements and a shift for each eight; value = d (2 scale + 1) (number +- 1/8).

The lower eight bits of an entry's index lie in `low`; of four entries a 16-bit word of `high` has, in a nibble each, the upper three and the
sign of the shift. A 16-bit word of `scale` has four 3-bit scales and, at the top, a quarter of the bits of the block's float16 d.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant import grids
from hotset.quant.codebook import IQ1_ZERO, entry_at, iq1_word, levels, scaled_numbers, words_of_bytes
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile

NIBBLES = np.array([0, 4, 8, 12], np.uint16)
THREES = np.array([0, 3, 6, 9], np.uint16)


def _values(fields: Fields) -> NDArray[np.float32]:
    low = words_of_bytes(fields["low"])
    upper = (fields["high"][..., None] >> NIBBLES & 15).reshape(low.shape)
    numbers = levels("iq1")[low | ((upper & 7) << 8)]
    shift = np.where(upper & 8, np.float32(-0.125), np.float32(0.125))
    d = (fields["scale"] >> 12 << NIBBLES).sum(-1, dtype=np.uint16).view(np.float16)
    odd = 2 * (fields["scale"][..., None] >> THREES & 7) + 1
    scale = d[..., None].astype(np.float32) * odd.reshape(*low.shape[:-1], 16).astype(np.float32)
    return scaled_numbers(scale, numbers + shift[..., None])


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    @cache
    def entry(j: int) -> Any:
        upper = e.bits(block.u16("high", j // 4), j % 4 * 4, 3)
        return block.entry(e.or_(e.byte(block.u32("low", j // 4), j % 4), e.shl(upper, 8)))

    @cache
    def eighth() -> Any:
        quarters = [e.shl(e.shr(block.u16("scale", i), 12), 4 * i) for i in range(4)]
        return e.fmul(e.bits_to_half(reduce(e.or_, quarters)), e.float_splat(0.125))

    def sub(s: int) -> Any:
        def word(i: int) -> Any:
            j = 2 * s + i // 2
            negative = e.bits(block.u16("high", j // 4), j % 4 * 4 + 3, 1)
            return e.apply(iq1_word, entry(j), i % 2, negative)

        def scale() -> Any:
            odd = e.or_(e.shl(e.bits(block.u16("scale", block.step), 3 * s, 3), 1), e.splat(1))
            return e.fmul(eighth(), e.to_float(odd))

        return e.sub(16 * s, word, 4, scale=scale, offset=IQ1_ZERO)

    yield from (e.chunk(sub(s), sub(s + 1)) for s in (0, 2))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base + 4096, row, padded_rows, COLS // 256, 0, 8, tl.int32)
    high = plane(base + 4096, row, padded_rows, COLS // 256, 32, 8, tl.uint16)
    upper = tl.load(high + unit * 16).to(tl.int32) >> (i // 2 * 4)
    index = ((tl.load(low + unit * 16) >> (i // 2 * 8)) & 255) | ((upper & 7) << 8)
    return iq1_word(entry_at(base, index), i % 2, (upper >> 3) & 1)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    scale = plane(base + 4096, row, padded_rows, COLS // 256, 48, 4, tl.uint16)
    d = tl.zeros([1, 1], tl.int32)
    for i in tl.static_range(4):
        d |= (tl.load(scale + (s // 16 * 4 + i) * 16).to(tl.int32) >> 12) << (4 * i)
    odd = ((tl.load(scale + s // 4 * 16).to(tl.int32) >> (s % 4 * 3)) & 7) * 2 + 1
    return d.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 0.125 * odd.to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 32, 16, 9)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 32, 16, 9)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 32, 16, 9, 0)


IQ1_M = QuantFormat(
    name="IQ1_M",
    ggml_type=29,
    block=256,
    block_bytes=56,
    planes=(
        Plane("low", "<u4", 8, 0),
        Plane("high", "<u2", 8, 32),
        Plane("scale", "<u2", 4, 48, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=4,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
    table=grids.packed("iq1"),
)
