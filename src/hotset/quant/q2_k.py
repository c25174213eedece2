"""Q2_K: 256 elements in sixteen sub-blocks of 16; 4-bit scales and minima, float16 d and dmin; value = d scale q - dmin minimum.

Each half of 128 elements has 32 bytes of bit pairs: byte j serves elements j, j + 32, j + 64, j + 96. A sub-block's byte holds its scale in
the low and its minimum in the high nibble.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, pairs_by_128
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    q = pairs_by_128(bytes_of(fields["low"]))
    d, dmin = (fields["block_scale"][..., i, None].astype(np.float32) for i in (0, 1))
    scale = d * (fields["scale_minimum"] & 15).astype(np.float32)
    minimum = dmin * (fields["scale_minimum"] >> 4).astype(np.float32)
    by_16 = q.reshape(*q.shape[:-1], 16, 16).astype(np.float32)
    return np.asarray((scale[..., None] * by_16 - minimum[..., None]).reshape(q.shape), np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def sub(quarter: int, part: int) -> Any:
        def word(i: int) -> Any:
            return e.pair(block.u32("low", 4 * part + i), quarter, to=0)

        def both() -> Any:
            return block.u8("scale_minimum", 2 * quarter + part)

        def scale() -> Any:
            return e.fmul(block.f16("block_scale", 0), e.to_float(e.nibble(both(), high=False)))

        def minimum() -> Any:
            return e.fmul(block.f16("block_scale", 1), e.to_float(e.shr(both(), 4)))

        return e.sub(32 * quarter + 16 * part, word, 4, scale=scale, minimum=minimum)

    for part in range(2):
        yield e.chunk(*(sub(quarter, part) for quarter in range(4)))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 256, 0, 16, tl.int32)
    return (tl.load(low + (unit * 8 + i % 8) * 16) >> (i // 8 * 2)) & 0x03030303


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    both = plane(base, row, padded_rows, COLS // 256, 64, 16, tl.uint8)
    d = plane(base, row, padded_rows, COLS // 256, 80, 2, tl.float16)
    return tl.load(d + s // 16 * 32).to(tl.float32) * (tl.load(both + s * 16) & 15).to(tl.float32)


@jit
def _minimum(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    both = plane(base, row, padded_rows, COLS // 256, 64, 16, tl.uint8)
    d = plane(base, row, padded_rows, COLS // 256, 80, 2, tl.float16)
    return tl.load(d + (s // 16 * 32 + 16)).to(tl.float32) * (tl.load(both + s * 16) >> 4).to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, _minimum, 128, 16, 0)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, _minimum, 128, 16, 0)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, _minimum, 128, 16, 0, 2)


Q2_K = QuantFormat(
    name="Q2_K",
    ggml_type=10,
    block=256,
    block_bytes=84,
    planes=(
        Plane("low", "<u4", 16, 16),
        Plane("scale_minimum", "u1", 16, 0),
        Plane("block_scale", "<f2", 2, 80, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=2,
    load=_load,
    dot=_dot,
    unit=128,
    tile=_tile,
)
