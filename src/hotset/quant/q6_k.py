"""Q6_K: 256 elements in sixteen sub-blocks of 16 with int8 scales and one float16 d; value = d scale (q - 32).

Each half of 128 elements has 64 bytes of low nibbles and 32 bytes of bit pairs: byte j of the pairs serves elements j, j + 32, j + 64, j + 96.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.tiles import GAIN, bytes_of_words, ordered, plane_rows
from hotset.quant.triton import dot4, jit, nibble, plane, tl, word_of


def _values(fields: Fields) -> NDArray[np.float32]:
    low, high = bytes_of(fields["low"]), bytes_of(fields["high"])
    lead = low.shape[:-1]
    low = low.reshape(*lead, 2, 64)
    nibbles = np.stack([low & 15, low >> 4], axis=-2)  # [..., half, low or high nibble, 64]
    pairs = high.reshape(*lead, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3  # [..., half, quarter, 32]
    q = nibbles.reshape(*lead, 2, 4, 32) | (pairs << 4)
    d = fields["block_scale"].astype(np.float32) * fields["scale"].astype(np.float32)
    by_16 = q.reshape(*lead, 16, 16).astype(np.float32) - np.float32(32)
    return np.asarray((d[..., None] * by_16).reshape(*lead, 256), np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def words(half: int, quarter: int, part: int) -> Any:
        def word(i: int) -> Any:
            at = 4 * part + i
            low = e.nibble(block.u32("low", 16 * half + 8 * (quarter % 2) + at), high=quarter >= 2)
            return e.or_(low, e.pair(block.u32("high", 8 * half + at), quarter, to=4))

        return word

    def sub(half: int, quarter: int, part: int) -> Any:
        s = 8 * half + 2 * quarter + part

        def scale() -> Any:
            return e.fmul(block.f16("block_scale"), e.to_float(block.i8("scale", s)))

        return e.sub(16 * s, words(half, quarter, part), 4, scale=scale, offset=32)

    for half in range(2):
        for part in range(2):
            yield e.chunk(*(sub(half, quarter, part) for quarter in range(4)))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    low = plane(base, row, padded_rows, COLS // 256, 0, 32, tl.int32)
    high = plane(base, row, padded_rows, COLS // 256, 128, 16, tl.int32)
    scale = plane(base, row, padded_rows, COLS // 256, 192, 16, tl.int8)
    d = plane(base, row, padded_rows, COLS // 256, 208, 1, tl.float16)
    word = tl.load(low + (k // 128 * 16 + k % 64 // 4) * 16)
    bits = tl.load(high + (k // 128 * 8 + k % 32 // 4) * 16)
    pair = (bits >> (8 * (k % 4) + k % 128 // 32 * 2)) & 3
    q = (nibble(word, k, k % 128 // 64) | (pair << 4)) - 32
    step = tl.load(d + k // 256 * 16).to(tl.float32) * tl.load(scale + k // 16 * 16).to(tl.float32)
    return step * q.to(tl.float32)


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
    low = plane(base, row, padded_rows, COLS // 256, 0, 32, tl.int32) + unit * (16 * 16)
    high = plane(base, row, padded_rows, COLS // 256, 128, 16, tl.int32) + unit * (8 * 16)
    scale = plane(base, row, padded_rows, COLS // 256, 192, 16, tl.int8) + unit * (8 * 16)
    d = plane(base, row, padded_rows, COLS // 256, 208, 1, tl.float16) + unit // 2 * 16
    x = xq.to(tl.pointer_type(tl.int64)) + unit * 16
    product = tl.zeros(acc.shape, tl.float32)
    for quarter in tl.static_range(4):
        # Two sub-blocks of 16 share an activation scale; their products times int8 scales stay below 2^24 together, so exact.
        total = tl.zeros(acc.shape, tl.int32)
        for part in tl.static_range(2):
            part_total = tl.zeros(acc.shape, tl.int32)
            for i in tl.static_range(2):
                pair = tl.load(x + (4 * quarter + 2 * part + i), mask=ok, other=0)
                for half in tl.static_range(2):
                    at = 4 * part + 2 * i + half
                    word = tl.load(low + (8 * (quarter % 2) + at) * 16, mask=ok, other=0)
                    bits = tl.load(high + at * 16, mask=ok, other=0)
                    q = (word >> (quarter // 2 * 4)) & 0x0F0F0F0F
                    q |= ((bits >> (2 * quarter)) & 0x03030303) << 4
                    part_total = dot4(q, word_of(pair, half), part_total, False, DP4A)
            sub = 2 * quarter + part
            part_total -= 32 * tl.load(xh + 8 * unit + sub, mask=ok, other=0)
            total += part_total * tl.load(scale + sub * 16, mask=ok, other=0).to(tl.int32)
        product += total.to(tl.float32) * tl.load(xd + 4 * unit + quarter, mask=ok, other=0)
    return acc + tl.load(d, mask=ok, other=0).to(tl.float32) * product


@jit
def _quarter(word: tl.tensor, pairs: tl.tensor, scale: tl.tensor, d: tl.tensor, QUARTER: tl.constexpr, R: tl.constexpr) -> tl.tensor:
    """32 elements [R, 8, 2, 2] from a nibble of each byte of `word` and a pair of bits of each byte of `pairs`."""
    if QUARTER == 0:
        q = (word & 0x0F0F0F0F) | ((pairs & 0x03030303) << 4)
    elif QUARTER == 1:
        q = (word & 0x0F0F0F0F) | ((pairs & 0x0C0C0C0C) << 2)
    elif QUARTER == 2:
        q = ((word >> 4) & 0x0F0F0F0F) | (pairs & 0x30303030)
    else:
        q = ((word >> 4) & 0x0F0F0F0F) | ((pairs >> 2) & 0x30303030)
    first = d * tl.load(scale + QUARTER * 32).to(tl.float32)
    second = d * tl.load(scale + QUARTER * 32 + 16).to(tl.float32)
    value = tl.reshape(bytes_of_words(q, 0x003F003F), [R, 2, 4, 2, 2]) - 1056
    value *= tl.join(first.to(tl.float16), second.to(tl.float16))[:, :, None, None, None]
    return tl.reshape(value, [R, 8, 2, 2])


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
    low = plane_rows(base, first, padded_rows, COLS // 256, 0, 32, tl.int32, R)[:, None]
    high = plane_rows(base, first, padded_rows, COLS // 256, 128, 16, tl.int32, R)[:, None]
    scale = plane_rows(base, first, padded_rows, COLS // 256, 192, 16, tl.int8, R) + step * 128
    block = plane_rows(base, first, padded_rows, COLS // 256, 208, 1, tl.float16, R) + step // 2 * 16
    w = tl.arange(0, 8)[None, :]
    a = tl.load(low + (step * 16 + w) * 16)
    b = tl.load(low + (step * 16 + 8 + w) * 16)
    pairs = tl.load(high + (step * 8 + w) * 16)
    d = tl.load(block).to(tl.float32) * GAIN
    first_half = tl.join(_quarter(a, pairs, scale, d, 0, R), _quarter(b, pairs, scale, d, 1, R))
    second_half = tl.join(_quarter(a, pairs, scale, d, 2, R), _quarter(b, pairs, scale, d, 3, R))
    value = tl.permute(tl.join(first_half, second_half), (0, 5, 4, 1, 2, 3))  # [R, 2, 2, 8, 2, 2]
    return ordered(value, R, 128, ORDER)


Q6_K = QuantFormat(
    name="Q6_K",
    ggml_type=14,
    block=256,
    block_bytes=210,
    planes=(
        Plane("low", "<u4", 32, 0),
        Plane("high", "<u4", 16, 128),
        Plane("scale", "i1", 16, 192),
        Plane("block_scale", "<f2", 1, 208),
    ),
    values=_values,
    chunks=_chunks,
    load=_load,
    dot=_dot,
    unit=128,
    tile=_tile,
    tile_unit=128,
)
