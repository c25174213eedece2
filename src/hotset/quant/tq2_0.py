"""TQ2_0: 256 elements of two bits, which lie as in Q2_K, with one float16 d; value = d (q - 1), of ternary weights q = 0, 1, 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, pairs_by_128, scaled
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled(fields["block_scale"], pairs_by_128(bytes_of(fields["low"])), 1)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def sub(quarter: int) -> Any:
        def word(i: int) -> Any:
            return e.pair(block.u32("low", i), quarter, to=0)

        return e.sub(32 * quarter, word, 8, scale=lambda: block.f16("block_scale"), offset=1)

    yield e.chunk(*(sub(quarter) for quarter in range(4)))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 256, 0, 16, tl.int32)
    return (tl.load(low + (unit * 8 + i % 8) * 16) >> (i // 8 * 2)) & 0x03030303


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    d = plane(base, row, padded_rows, COLS // 256, 64, 1, tl.float16)
    return tl.load(d + s // 8 * 16).to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 128, 32, 1)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 128, 32, 1)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 128, 32, 1, 0)


TQ2_0 = QuantFormat(
    name="TQ2_0",
    ggml_type=35,
    block=256,
    block_bytes=66,
    planes=(Plane("low", "<u4", 16, 0), Plane("block_scale", "<f2", 1, 64, whole=True)),
    values=_values,
    chunks=_chunks,
    steps=2,
    load=_load,
    dot=_dot,
    unit=128,
    tile=_tile,
)
