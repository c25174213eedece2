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
from hotset.quant.tiles import bytes_of_words, ordered, plane_rows, scale_of, scaled_tile
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
    def sub(quarter: int, part: int) -> Any:
        s = 2 * quarter + part

        def word(i: int) -> Any:
            at = 4 * part + i
            low = e.nibble(block.u32("low", 8 * (quarter % 2) + at), high=quarter >= 2)
            return e.or_(low, e.pair(block.u32("high", at), quarter, to=4))

        def scale() -> Any:
            return e.fmul(block.f16("block_scale"), e.to_float(block.i8("scale", s)))

        return e.sub(16 * s, word, 4, scale=scale, offset=32)

    for part in range(2):
        yield e.chunk(*(sub(quarter, part) for quarter in range(4)))


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
def _sub_block(
    word: tl.tensor, pairs: tl.tensor, scale: tl.tensor, d: tl.tensor, QUARTER: tl.constexpr, PART: tl.constexpr
) -> tl.tensor:
    """16 elements [R, 4, 2, 2] from a nibble of each byte of `word` and a pair of bits of each byte of `pairs`, [R, 4] each."""
    if QUARTER == 0:
        q = (word & 0x0F0F0F0F) | ((pairs & 0x03030303) << 4)
    elif QUARTER == 1:
        q = (word & 0x0F0F0F0F) | ((pairs & 0x0C0C0C0C) << 2)
    elif QUARTER == 2:
        q = ((word >> 4) & 0x0F0F0F0F) | (pairs & 0x30303030)
    else:
        q = ((word >> 4) & 0x0F0F0F0F) | ((pairs >> 2) & 0x30303030)
    own = d * tl.load(scale + (2 * QUARTER + PART) * 16).to(tl.float32)
    return scaled_tile(bytes_of_words(q, 0x003F003F), own, 1056)


@jit
def _half_quarters(low: tl.tensor, high: tl.tensor, scale: tl.tensor, d: tl.tensor, PART: tl.constexpr) -> tl.tensor:
    """Part 0 or 1 of the four quarters of 128 elements, [R, 4, 2, 2, 2, 2]: the last two are quarter % 2, quarter // 2."""
    w = (4 * PART + tl.arange(0, 4)[None, :]) * 16
    a = tl.load(low + w)
    b = tl.load(low + w + 128)
    pairs = tl.load(high + w)
    first = tl.join(_sub_block(a, pairs, scale, d, 0, PART), _sub_block(b, pairs, scale, d, 1, PART))
    second = tl.join(_sub_block(a, pairs, scale, d, 2, PART), _sub_block(b, pairs, scale, d, 3, PART))
    return tl.join(first, second)


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
    low = plane_rows(base, first, padded_rows, COLS // 256, 0, 32, tl.int32, R)[:, None] + step * 256
    high = plane_rows(base, first, padded_rows, COLS // 256, 128, 16, tl.int32, R)[:, None] + step * 128
    scale = plane_rows(base, first, padded_rows, COLS // 256, 192, 16, tl.int8, R) + step * 128
    d = scale_of(plane_rows(base, first, padded_rows, COLS // 256, 208, 1, tl.float16, R) + step // 2 * 16)
    # A sub-block's scale is an operand of its own, so that its load, too, is copied ahead.
    value = tl.join(_half_quarters(low, high, scale, d, 0), _half_quarters(low, high, scale, d, 1))
    value = tl.permute(value, (0, 5, 4, 6, 1, 2, 3))  # [R, quarter // 2, quarter % 2, part, word, b % 2, b // 2]
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
        Plane("block_scale", "<f2", 1, 208, whole=True),
    ),
    values=_values,
    chunks=_chunks,
    steps=2,
    load=_load,
    dot=_dot,
    unit=128,
    tile=_tile,
    tile_unit=128,
)
