"""IQ3_S: 256 elements; each four have an entry of 512, each eight a byte of signs, each 32 a 4-bit scale; value = d (2 scale + 1) number.

The lower eight bits of an entry's index lie in `low`, the ninth in `high`: a byte of it serves 32 elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant import grids
from hotset.quant.bits import bytes_of
from hotset.quant.codebook import (
    SIGNED_ZERO,
    entry_at,
    iq3_s_word,
    levels,
    scaled_numbers,
    signs,
    two_nibbles,
    words_of_bytes,
)
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    low = words_of_bytes(fields["low"])
    ninth = np.unpackbits(fields["high"], axis=-1, bitorder="little").astype(np.uint16)
    sign = signs(bytes_of(fields["sign"]))
    numbers = levels("iq3_s")[low | (ninth << 8)].reshape(sign.shape) * sign
    odd = 2 * two_nibbles(fields["scale"]) + 1
    return scaled_numbers(fields["block_scale"].astype(np.float32) * odd.astype(np.float32), numbers)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def sub(s: int) -> Any:
        def word(i: int) -> Any:
            ninth = e.bits(block.u8("high", s), i, 1)
            entry = block.entry(e.or_(e.byte(block.u32("low", 2 * s + i // 4), i % 4), e.shl(ninth, 8)))
            return e.apply(iq3_s_word, entry, e.bits(block.u32("sign", s), 4 * i, 4))

        def scale() -> Any:
            odd = e.or_(e.shl(e.bits(block.u8("scale"), 4 * s, 4), 1), e.splat(1))
            return e.fmul(block.f16("block_scale"), e.to_float(odd))

        return e.sub(32 * s, word, 8, scale=scale, offset=SIGNED_ZERO)

    yield from (e.chunk(sub(s)) for s in range(2))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base + 1024, row, padded_rows, COLS // 256, 0, 16, tl.int32)
    sign = plane(base + 1024, row, padded_rows, COLS // 256, 64, 8, tl.int32)
    high = plane(base + 1024, row, padded_rows, COLS // 256, 96, 8, tl.uint8)
    ninth = (tl.load(high + unit * 16).to(tl.int32) >> i) & 1
    index = ((tl.load(low + (unit * 2 + i // 4) * 16) >> (i % 4 * 8)) & 255) | (ninth << 8)
    return iq3_s_word(entry_at(base, index), (tl.load(sign + unit * 16) >> (i * 4)) & 15)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    both = plane(base + 1024, row, padded_rows, COLS // 256, 104, 4, tl.uint8)
    d = plane(base + 1024, row, padded_rows, COLS // 256, 108, 1, tl.float16)
    odd = ((tl.load(both + s // 2 * 16).to(tl.int32) >> (s % 2 * 4)) & 15) * 2 + 1
    return tl.load(d + s // 8 * 16).to(tl.float32) * odd.to(tl.float32)


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


IQ3_S = QuantFormat(
    name="IQ3_S",
    ggml_type=21,
    block=256,
    block_bytes=110,
    planes=(
        Plane("low", "<u4", 16, 2),
        Plane("sign", "<u4", 8, 74),
        Plane("high", "u1", 8, 66),
        Plane("scale", "u1", 4, 106),
        Plane("block_scale", "<f2", 1, 0, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=4,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
    table=grids.packed("iq3_s"),
)
