"""MXFP4: 32 elements of four bits (a float: sign, two bits of exponent, one of mantissa) with one power of two; nibbles as in Q4_0.

value = 2^(exponent - 128) number, where the number is twice the float.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.nibbles import E2M1, E2M1_BYTES, E2M1_ZERO, look_up_e2m1
from hotset.quant.tiles import ordered, plane_rows, side_by_side
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load


def _values(fields: Fields) -> NDArray[np.float32]:
    exponent = fields["exponent"].astype(np.uint32)
    # The two least are float32's subnormal numbers.
    bits = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - 1) << 23)
    numbers = np.array(E2M1, np.float32)[join_nibbles(bytes_of(fields["low"]))]
    return np.asarray(bits.view(np.float32) * numbers, np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        return e.lookup(e.nibble(block.u32("low", i % 4), high=i >= 4), E2M1_BYTES)

    def scale() -> Any:
        exponent = block.u8("exponent")
        subnormal = e.b.shl(e.splat(0x00200000), exponent)
        normal = e.shl(e.b.sub(exponent, e.splat(1)), 23)
        return e.bits_to_float(e.b.select(e.b.icmp_unsigned("<", exponent, e.splat(2)), subnormal, normal))

    yield e.chunk(e.sub(0, word, 8, scale=scale, offset=E2M1_ZERO))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 32, 0, 4, tl.int32)
    return look_up_e2m1(tl.load(low + (unit * 4 + i % 4) * 16), i // 4, ASM)


@jit
def _power(exponent: tl.tensor) -> tl.tensor:
    """Turn bytes into 2^(exponent - 128); the two least are float32's subnormal numbers."""
    exponent = exponent.to(tl.int32)
    return tl.where(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23).to(tl.float32, bitcast=True)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return _power(tl.load(plane(base, row, padded_rows, COLS // 32, 16, 1, tl.uint8) + s * 16))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 32, 32, 12)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 32, 32, 12)


@jit
def _pair_of_halves(word: tl.tensor) -> tl.tensor:
    """Take the lowest nibbles of a word's halves as float16: [..., 2]. The same bits at the top of float16 are 2^14 times too small."""
    bits = ((word & 0x00070007) << 9) | ((word & 0x00080008) << 12)
    low = (bits & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = ((bits >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(low, high)


@jit
def _floats_of_words(word: tl.tensor) -> tl.tensor:
    """Take the low nibbles of the bytes of words [R, W] as float16, 2^14 times too small: [R, W, b % 2, b // 2]."""
    pairs = tl.join(_pair_of_halves(word), _pair_of_halves(word >> 8))  # [R, W, b // 2, b % 2]
    return tl.permute(pairs, (0, 1, 3, 2))


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane_rows(base, first, padded_rows, COLS // 32, 0, 4, tl.int32, R)[:, None]
    exponent = plane_rows(base, first, padded_rows, COLS // 32, 16, 1, tl.uint8, R)
    word = tl.load(low + (step * 4 + tl.arange(0, 4)[None, :]) * 16)
    value = tl.reshape(side_by_side(_floats_of_words(word), _floats_of_words(word >> 4)), [R, 8, 2, 2]) * 16384
    scale = (_power(tl.load(exponent + step * 16)) * 32).to(tl.float16)  # the float is half the number
    return ordered(value * scale[:, None, None, None], R, 32, ORDER)


MXFP4 = QuantFormat(
    name="MXFP4",
    ggml_type=39,
    block=32,
    block_bytes=17,
    planes=(Plane("low", "<u4", 4, 1), Plane("exponent", "u1", 1, 0)),
    values=_values,
    chunks=_chunks,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
