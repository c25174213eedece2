"""Q3_K: 256 elements in sixteen sub-blocks of 16 with 6-bit scales and one float16 d; value = d (scale - 32) (q - 4).

The lower two bits of q lie as in Q2_K; bit b of byte j of `high` is the third of element 32 b + j. The scales' twelve bytes (eight of
nibbles, four of pairs) become sixteen in the plane, less 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, pairs_by_128
from hotset.quant.layout import Bytes, Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _split(blocks: Bytes) -> dict[str, NDArray[Any]]:
    nibbles, pairs = blocks[..., 96:104], blocks[..., 104:108]
    lower = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    upper = np.concatenate([(pairs >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    return {"scale": (lower | (upper << 4)).astype(np.int8) - np.int8(32)}


def _join(fields: Fields, blocks: Bytes) -> None:
    scale = (fields["scale"] + np.int8(32)).astype(np.uint8)
    blocks[..., 96:104] = (scale[..., :8] & 15) | ((scale[..., 8:] & 15) << 4)
    by_four = (scale >> 4).reshape(*scale.shape[:-1], 4, 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    blocks[..., 104:108] = np.bitwise_or.reduce(by_four, axis=-2)


def _values(fields: Fields) -> NDArray[np.float32]:
    third = np.unpackbits(bytes_of(fields["high"])[..., None, :], axis=-2, count=None, bitorder="little")
    low = pairs_by_128(bytes_of(fields["low"]))
    q = low | (third.reshape(low.shape) << 2)
    scale = fields["block_scale"].astype(np.float32) * fields["scale"].astype(np.float32)
    by_16 = q.reshape(*q.shape[:-1], 16, 16).astype(np.float32) - np.float32(4)
    return np.asarray((scale[..., None] * by_16).reshape(q.shape), np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def sub(quarter: int, part: int) -> Any:
        def word(i: int) -> Any:
            at = 4 * part + i
            third = e.bit_of_step(block.u32("high", at), quarter, block.step, 4, to=2)
            return e.or_(e.pair(block.u32("low", at), quarter, to=0), third)

        def scale() -> Any:
            return e.fmul(block.f16("block_scale"), e.to_float(block.i8("scale", 2 * quarter + part)))

        return e.sub(32 * quarter + 16 * part, word, 4, scale=scale, offset=4)

    for part in range(2):
        yield e.chunk(*(sub(quarter, part) for quarter in range(4)))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 256, 0, 16, tl.int32)
    high = plane(base, row, padded_rows, COLS // 256, 64, 8, tl.int32)
    pairs = (tl.load(low + (unit * 8 + i % 8) * 16) >> (i // 8 * 2)) & 0x03030303
    third = tl.load(high + (unit // 2 * 8 + i % 8) * 16) >> (unit % 2 * 4 + i // 8)
    return pairs | ((third & 0x01010101) << 2)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    scale = plane(base, row, padded_rows, COLS // 256, 96, 16, tl.int8)
    d = plane(base, row, padded_rows, COLS // 256, 112, 1, tl.float16)
    return tl.load(d + s // 16 * 16).to(tl.float32) * tl.load(scale + s * 16).to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 128, 16, 4)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 128, 16, 4)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 128, 16, 4, 0)


Q3_K = QuantFormat(
    name="Q3_K",
    ggml_type=11,
    block=256,
    block_bytes=110,
    planes=(
        Plane("low", "<u4", 16, 32),
        Plane("high", "<u4", 8, 0, whole=True),
        Plane("scale", "i1", 16, 96, "Q3_K scale"),
        Plane("block_scale", "<f2", 1, 108, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=2,
    split=_split,
    join=_join,
    load=_load,
    dot=_dot,
    unit=128,
    tile=_tile,
)
