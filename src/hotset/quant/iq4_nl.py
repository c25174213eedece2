"""IQ4_NL: 32 elements, one float16 scale d; nibbles as in Q4_0 are indices of sixteen uneven levels; value = d level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.nibbles import IQ4, IQ4_BYTES, IQ4_ZERO, look_up_iq4
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    levels = np.array(IQ4, np.float32)[join_nibbles(bytes_of(fields["low"]))]
    return np.asarray(fields["block_scale"].astype(np.float32) * levels, np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    yield e.chunk(levels_of_32(e, block, lambda: block.f16("block_scale")))


def levels_of_32(e: Any, block: Any, scale: Any) -> Any:
    """32 elements; IQ4_XS shares them."""

    def word(i: int) -> Any:
        return e.lookup(e.nibble(block.u32("low", i % 4), high=i >= 4), IQ4_BYTES)

    return e.sub(0, word, 8, scale=scale, offset=IQ4_ZERO, wide=True)


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32)
    return look_up_iq4(tl.load(low + (unit * 4 + i % 4) * 16), i // 4, ASM)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    d = plane(base, row, padded_rows, COLS // 32, 16, 1, tl.float16)
    return tl.load(d + s * 16).to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 32, 32, 128)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 32, 32, 128)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 32, 32, 128, 0)


IQ4_NL = QuantFormat(
    name="IQ4_NL",
    ggml_type=20,
    block=32,
    block_bytes=18,
    planes=(Plane("low", "<u4", 4, 2), Plane("block_scale", "<f2", 1, 0)),
    values=_values,
    chunks=_chunks,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
