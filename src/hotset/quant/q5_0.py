"""Q5_0: as Q4_0 with a fifth bit per element, bit k of a 32-bit word; value = d (q - 16).

In the plane `high`, bit t of byte j of the word belongs to element 4 t + j, so that one shift and one mask bring the fifth bits of four
neighbours into their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles, scaled
from hotset.quant.layout import Bytes, Fields, Plane, QuantFormat
from hotset.quant.tiles import bytes_of_words, ordered, plane_rows, scale_of, scaled_tile, side_by_side
from hotset.quant.triton import dot4, jit, nibble, plane, tl, word_of

BIT_OF_ELEMENT = np.array([8 * (k % 4) + k // 4 for k in range(32)])


def spread_fifth_bits(word: Bytes) -> NDArray[np.uint32]:
    """The four bytes of bits in the file [..., 4] -> the plane's word [..., 1]; Q5_1 shares it and the next two."""
    bits = np.unpackbits(word, axis=-1, bitorder="little")
    spread = np.empty_like(bits)
    spread[..., BIT_OF_ELEMENT] = bits
    return np.packbits(spread, axis=-1, bitorder="little").view("<u4")


def fifth_bits(fields: Fields) -> NDArray[np.uint8]:
    """The plane's word [..., 1] -> the bits of the elements [..., 32]."""
    return np.unpackbits(bytes_of(fields["high"]), axis=-1, bitorder="little")[..., BIT_OF_ELEMENT]


def pack_fifth_bits(fields: Fields) -> Bytes:
    """The inverse of `spread_fifth_bits`."""
    return pack_bits_of_32(fifth_bits(fields))


def pack_bits_of_32(bits: NDArray[Any]) -> Bytes:
    """The bits of the elements [..., 32] -> the four bytes in the file."""
    return np.packbits(bits, axis=-1, bitorder="little")


def _split(blocks: Bytes) -> dict[str, NDArray[Any]]:
    return {"high": spread_fifth_bits(blocks[..., 2:6])}


def _join(fields: Fields, blocks: Bytes) -> None:
    blocks[..., 2:6] = pack_fifth_bits(fields)


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled(fields["block_scale"], join_nibbles(bytes_of(fields["low"])) | (fifth_bits(fields) << 4), 16)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        return e.or_(e.nibble(block.u32("low", i % 4), high=i >= 4), e.bit(block.u32("high"), i, to=4))

    yield e.chunk(e.sub(0, word, 8, scale=lambda: block.f16("block_scale"), offset=16))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32)
    high = plane(base, row, padded_rows, COLS // 32, 16, 1, tl.int32)
    scale = plane(base, row, padded_rows, COLS // 32, 20, 1, tl.float16)
    word = tl.load(low + (k // 32 * 4 + k % 16 // 4) * 16)
    fifth = (tl.load(high + k // 32 * 16) >> (8 * (k % 4) + k % 32 // 4)) & 1
    q = (nibble(word, k, k % 32 // 16) | (fifth << 4)) - 16
    return tl.load(scale + k // 32 * 16).to(tl.float32) * q.to(tl.float32)


@jit
def _dot(
    acc: tl.tensor,
    base: tl.tensor,
    row: tl.tensor,
    unit: tl.tensor,
    ok: tl.tensor,
    activation: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    DP4A: tl.constexpr,
) -> tl.tensor:
    xq, xd, xh, _ = activation
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32) + unit * (4 * 16)
    high = plane(base, row, padded_rows, COLS // 32, 16, 1, tl.int32) + unit * 16
    scale = plane(base, row, padded_rows, COLS // 32, 20, 1, tl.float16) + unit * 16
    x = xq.to(tl.pointer_type(tl.int64)) + unit * 4
    bits = tl.load(high, mask=ok, other=0)
    total = tl.zeros(acc.shape, tl.int32)
    for i in tl.static_range(2):
        first = tl.load(x + i, mask=ok, other=0)
        second = tl.load(x + 2 + i, mask=ok, other=0)
        for half in tl.static_range(2):
            w = 2 * i + half
            word = tl.load(low + w * 16, mask=ok, other=0)
            lows = (word & 0x0F0F0F0F) | (((bits >> w) & 0x01010101) << 4)
            highs = ((word >> 4) & 0x0F0F0F0F) | (((bits >> (w + 4)) & 0x01010101) << 4)
            total = dot4(lows, word_of(first, half), total, False, DP4A)
            total = dot4(highs, word_of(second, half), total, False, DP4A)
    total -= 16 * (tl.load(xh + 2 * unit, mask=ok, other=0) + tl.load(xh + 2 * unit + 1, mask=ok, other=0))
    d = tl.load(scale, mask=ok, other=0).to(tl.float32)
    return acc + total.to(tl.float32) * (d * tl.load(xd + unit, mask=ok, other=0))


@jit
def _tile(
    base: tl.tensor,
    first: tl.tensor,
    step: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:
    low = plane_rows(base, first, padded_rows, COLS // 32, 0, 4, tl.int32, R)[:, None]
    high = plane_rows(base, first, padded_rows, COLS // 32, 16, 1, tl.int32, R)
    d = plane_rows(base, first, padded_rows, COLS // 32, 20, 1, tl.float16, R)
    w = tl.arange(0, 4)[None, :]
    word = tl.load(low + (step * 4 + w) * 16)
    bits = tl.load(high + step * 16)[:, None] >> w
    lows = (word & 0x0F0F0F0F) | ((bits & 0x01010101) << 4)
    highs = ((word >> 4) & 0x0F0F0F0F) | (bits & 0x10101010)
    value = side_by_side(bytes_of_words(lows, 0x001F001F), bytes_of_words(highs, 0x001F001F))
    value = tl.reshape(value, [R, 8, 2, 2])
    return ordered(scaled_tile(value, scale_of(d + step * 16), 1040), R, 32, ORDER)


Q5_0 = QuantFormat(
    name="Q5_0",
    ggml_type=6,
    block=32,
    block_bytes=22,
    planes=(Plane("low", "<u4", 4, 6), Plane("high", "<u4", 1, 2, "spread bits"), Plane("block_scale", "<f2", 1, 0)),
    values=_values,
    chunks=_chunks,
    split=_split,
    join=_join,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
