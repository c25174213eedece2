"""IQ4_XS: 256 elements in eight sub-blocks of 32 like IQ4_NL's, each with a 6-bit scale; value = d (scale - 32) level.

The scales' lower four bits lie in nibbles, their upper two in a word; in the plane they are whole bytes, less 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles
from hotset.quant.iq4_nl import levels_of_32
from hotset.quant.layout import Bytes, Fields, Plane, QuantFormat
from hotset.quant.nibbles import IQ4, look_up_iq4
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile

PAIRS = np.arange(0, 16, 2, dtype=np.uint16)


def _split(blocks: Bytes) -> dict[str, NDArray[Any]]:
    upper = np.ascontiguousarray(blocks[..., 2:4]).view("<u2") >> PAIRS & 3
    lower = np.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], axis=-1).reshape(upper.shape)
    return {"scale": (lower | (upper << 4)).astype(np.int8) - np.int8(32)}


def _join(fields: Fields, blocks: Bytes) -> None:
    scale = (fields["scale"] + np.int8(32)).astype(np.uint8)
    upper = ((scale >> 4).astype(np.uint16) << PAIRS).sum(-1, dtype=np.uint16)
    blocks[..., 2:4] = upper[..., None].astype("<u2").view(np.uint8)
    blocks[..., 4:8] = (scale[..., ::2] & 15) | ((scale[..., 1::2] & 15) << 4)


def _values(fields: Fields) -> NDArray[np.float32]:
    packed = bytes_of(fields["low"])
    levels = np.array(IQ4, np.float32)[join_nibbles(packed.reshape(*packed.shape[:-1], 8, 16))]
    scale = fields["block_scale"].astype(np.float32) * fields["scale"].astype(np.float32)
    return np.asarray((scale[..., None] * levels).reshape(*packed.shape[:-1], 256), np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def scale() -> Any:
        return e.fmul(block.f16("block_scale"), e.to_float(block.i8("scale")))

    yield e.chunk(levels_of_32(e, block, scale))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 256, 0, 32, tl.int32)
    return look_up_iq4(tl.load(low + (unit * 4 + i % 4) * 16), i // 4, ASM)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    scale = plane(base, row, padded_rows, COLS // 256, 128, 8, tl.int8)
    d = plane(base, row, padded_rows, COLS // 256, 136, 1, tl.float16)
    return tl.load(d + s // 8 * 16).to(tl.float32) * tl.load(scale + s * 16).to(tl.float32)


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


IQ4_XS = QuantFormat(
    name="IQ4_XS",
    ggml_type=23,
    block=256,
    block_bytes=136,
    planes=(
        Plane("low", "<u4", 32, 8),
        Plane("scale", "i1", 8, 2, "IQ4_XS scale"),
        Plane("block_scale", "<f2", 1, 0, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=8,
    split=_split,
    join=_join,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
