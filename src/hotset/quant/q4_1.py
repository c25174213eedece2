"""Q4_1: 32 elements, float16 d and m; nibbles as in Q4_0; value = d q + m."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles, scaled_and_moved
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled_and_moved(fields, join_nibbles(bytes_of(fields["low"])))


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        return e.nibble(block.u32("low", i % 4), high=i >= 4)

    scale, minimum = scale_and_minimum(e, block)
    yield e.chunk(e.sub(0, word, 8, scale=scale, minimum=minimum))


def scale_and_minimum(e: Any, block: Any) -> tuple[Any, Any]:
    """D and -m; Q5_1 shares them."""
    return lambda: block.f16("block_scale", 0), lambda: e.fneg(block.f16("block_scale", 1))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32)
    return (tl.load(low + (unit * 4 + i % 4) * 16) >> (i // 4 * 4)) & 0x0F0F0F0F


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    d = plane(base, row, padded_rows, COLS // 32, 16, 2, tl.float16)
    return tl.load(d + s * 32).to(tl.float32)


@jit
def _minimum(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    m = plane(base, row, padded_rows, COLS // 32, 16, 2, tl.float16)
    return -tl.load(m + (s * 32 + 16)).to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, _minimum, 32, 32, 0)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, _minimum, 32, 32, 0)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, _minimum, 32, 32, 0, 8)


Q4_1 = QuantFormat(
    name="Q4_1",
    ggml_type=3,
    block=32,
    block_bytes=20,
    planes=(Plane("low", "<u4", 4, 4), Plane("block_scale", "<f2", 2, 0)),
    values=_values,
    chunks=_chunks,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
