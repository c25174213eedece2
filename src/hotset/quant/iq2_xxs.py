"""IQ2_XXS: 256 elements; each 32 have four entries of 256 (a byte each), seven bits for eight signs and a 4-bit scale.

value = d (2 scale + 1) / 8 number. A sub-block's first word holds the entries, its second the signs and, at the top, the scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant import grids
from hotset.quant.codebook import EIGHT_SIGNS, SIGNED_ZERO, entry_at, iq2_word, levels, scaled_numbers, signs
from hotset.quant.codes import with_parity
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile

SEVENS = np.array([0, 7, 14, 21], np.uint32)


def _values(fields: Fields) -> NDArray[np.float32]:
    words = fields["low"].reshape(*fields["low"].shape[:-1], 8, 2)
    entries = levels("iq2_xxs")[np.ascontiguousarray(words[..., 0]).view(np.uint8)]
    bits = EIGHT_SIGNS[words[..., 1, None] >> SEVENS & 127]
    numbers = entries * signs(bits.reshape(entries.shape[:-1]))
    scale = fields["block_scale"].astype(np.float32) * (2 * (words[..., 1] >> 28) + 1).astype(np.float32)
    return scaled_numbers(scale * np.float32(0.125), numbers)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    @cache
    def entry(j: int) -> Any:
        return block.entry(e.byte(block.u32("low", 0), j))

    @cache
    def eight_signs(j: int) -> Any:
        return e.apply(with_parity, e.bits(block.u32("low", 1), 7 * j, 7))

    def word(i: int) -> Any:
        return e.apply(iq2_word, entry(i // 2), i % 2, eight_signs(i // 2))

    def scale() -> Any:
        odd = e.or_(e.shl(e.shr(block.u32("low", 1), 28), 1), e.splat(1))
        return e.fmul(e.fmul(block.f16("block_scale"), e.float_splat(0.125)), e.to_float(odd))

    yield e.chunk(e.sub(0, word, 8, scale=scale, offset=SIGNED_ZERO))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base + 512, row, padded_rows, COLS // 256, 0, 16, tl.int32) + unit * 32
    entry = entry_at(base, (tl.load(low) >> (i // 2 * 8)) & 255)
    return iq2_word(entry, i % 2, with_parity((tl.load(low + 16) >> (i // 2 * 7)) & 127))


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    low = plane(base + 512, row, padded_rows, COLS // 256, 0, 16, tl.int32)
    d = plane(base + 512, row, padded_rows, COLS // 256, 64, 1, tl.float16)
    odd = ((tl.load(low + (s * 32 + 16)) >> 28) & 15) * 2 + 1
    return tl.load(d + s // 8 * 16).to(tl.float32) * 0.125 * odd.to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 32, 32, 64)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 32, 32, 64)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 32, 32, 64, 0)


IQ2_XXS = QuantFormat(
    name="IQ2_XXS",
    ggml_type=16,
    block=256,
    block_bytes=66,
    planes=(
        Plane("low", "<u4", 16, 2),
        Plane("block_scale", "<f2", 1, 0, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=8,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
    table=grids.packed("iq2_xxs"),
)
