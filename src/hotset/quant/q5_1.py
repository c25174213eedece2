"""Q5_1: as Q4_1 with a fifth bit per element, which lies in the plane `high` as in Q5_0; value = d q + m."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles, scaled_and_moved
from hotset.quant.layout import Bytes, Fields, Plane, QuantFormat
from hotset.quant.q4_1 import scale_and_minimum
from hotset.quant.q5_0 import fifth_bits, pack_fifth_bits, spread_fifth_bits
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _split(blocks: Bytes) -> dict[str, NDArray[Any]]:
    return {"high": spread_fifth_bits(blocks[..., 4:8])}


def _join(fields: Fields, blocks: Bytes) -> None:
    blocks[..., 4:8] = pack_fifth_bits(fields)


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled_and_moved(fields, join_nibbles(bytes_of(fields["low"])) | (fifth_bits(fields) << 4))


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        return e.or_(e.nibble(block.u32("low", i % 4), high=i >= 4), e.bit(block.u32("high"), i, to=4))

    scale, minimum = scale_and_minimum(e, block)
    yield e.chunk(e.sub(0, word, 8, scale=scale, minimum=minimum))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32)
    high = plane(base, row, padded_rows, COLS // 32, 16, 1, tl.int32)
    nibbles = (tl.load(low + (unit * 4 + i % 4) * 16) >> (i // 4 * 4)) & 0x0F0F0F0F
    return nibbles | (((tl.load(high + unit * 16) >> i) & 0x01010101) << 4)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    d = plane(base, row, padded_rows, COLS // 32, 20, 2, tl.float16)
    return tl.load(d + s * 32).to(tl.float32)


@jit
def _minimum(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    m = plane(base, row, padded_rows, COLS // 32, 20, 2, tl.float16)
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
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, _minimum, 32, 32, 0, 16)


Q5_1 = QuantFormat(
    name="Q5_1",
    ggml_type=7,
    block=32,
    block_bytes=24,
    planes=(Plane("low", "<u4", 4, 8), Plane("high", "<u4", 1, 4, "spread bits"), Plane("block_scale", "<f2", 2, 0)),
    values=_values,
    chunks=_chunks,
    split=_split,
    join=_join,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
