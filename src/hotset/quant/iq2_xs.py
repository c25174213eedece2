"""IQ2_XS: 256 elements; each eight have an entry of 512 and seven bits for their signs, each 16 a 4-bit scale; value = d (2 scale + 1) / 8 number."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant import grids
from hotset.quant.codebook import (
    EIGHT_SIGNS,
    SIGNED_ZERO,
    entry_at,
    iq2_word,
    levels,
    scaled_numbers,
    signs,
    two_nibbles,
)
from hotset.quant.codes import with_parity
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    halves = np.ascontiguousarray(fields["low"]).view("<u2")
    numbers = levels("iq2_xs")[halves & 511] * signs(EIGHT_SIGNS[halves >> 9])
    return scaled_numbers(eighths_of_16(fields), numbers)


def eighths_of_16(fields: Fields) -> NDArray[np.float32]:
    """D (2 scale + 1) / 8 of each 16 elements; IQ2_S shares it and the next two."""
    odd = 2 * two_nibbles(fields["scale"]) + 1
    return np.asarray(fields["block_scale"].astype(np.float32) * odd.astype(np.float32) * np.float32(0.125))


def scale_of_half(e: Any, block: Any, half: int) -> Any:
    """The same of the lower or upper 16 of 32 elements, for the host."""
    odd = e.or_(e.shl(e.bits(block.u8("scale"), 4 * half, 4), 1), e.splat(1))
    return e.fmul(e.fmul(block.f16("block_scale"), e.float_splat(0.125)), e.to_float(odd))


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    @cache
    def half_word(j: int) -> Any:
        return e.bits(block.u32("low", j // 2), j % 2 * 16, 16)

    @cache
    def entry(j: int) -> Any:
        return block.entry(e.bits(half_word(j), 0, 9))

    @cache
    def eight_signs(j: int) -> Any:
        return e.apply(with_parity, e.shr(half_word(j), 9))

    def sub(half: int) -> Any:
        def word(i: int) -> Any:
            j = 2 * half + i // 2
            return e.apply(iq2_word, entry(j), i % 2, eight_signs(j))

        return e.sub(16 * half, word, 4, scale=lambda: scale_of_half(e, block, half), offset=SIGNED_ZERO)

    yield e.chunk(sub(0), sub(1))


@jit
def scale_of_16(
    base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, BEFORE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """D (2 scale + 1) / 8 of each 16 elements. BEFORE: bytes of a block before the plane `scale`."""
    both = plane(base, row, padded_rows, COLS // 256, BEFORE, 8, tl.uint8)
    d = plane(base, row, padded_rows, COLS // 256, BEFORE + 8, 1, tl.float16)
    odd = ((tl.load(both + s // 2 * 16).to(tl.int32) >> (s % 2 * 4)) & 15) * 2 + 1
    return tl.load(d + s // 16 * 16).to(tl.float32) * 0.125 * odd.to(tl.float32)


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base + 1024, row, padded_rows, COLS // 256, 0, 16, tl.int32)
    half_word = tl.load(low + (unit * 2 + i // 4) * 16) >> (i // 2 % 2 * 16)
    return iq2_word(entry_at(base, half_word & 511), i % 2, with_parity((half_word >> 9) & 127))


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return scale_of_16(base + 1024, row, s, padded_rows, COLS, 64)


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


IQ2_XS = QuantFormat(
    name="IQ2_XS",
    ggml_type=17,
    block=256,
    block_bytes=74,
    planes=(
        Plane("low", "<u4", 16, 2),
        Plane("scale", "u1", 8, 66),
        Plane("block_scale", "<f2", 1, 0, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=8,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
    table=grids.packed("iq2_xs"),
)
