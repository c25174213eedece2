"""NVFP4: 64 elements in four sub-blocks of 16, of the 4-bit floats of MXFP4, each with an 8-bit float; value = scale number.

The scale is unsigned: four bits of exponent and three of mantissa; here it is half as large, since the number is twice the float. Eight
bytes hold a sub-block: low nibbles the first eight elements, high nibbles the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.nibbles import E2M1, E2M1_BYTES, E2M1_ZERO, look_up_e2m1
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile

NOT_A_NUMBER = 0x7F  # counts as zero in ggml


def float8(byte: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Half of the 8-bit float: its seven bits at the place of float32's exponent are too small by the difference of the biases, 2^120."""
    bits = (byte & 0x7F).astype(np.uint32) << 20
    return np.where(byte == NOT_A_NUMBER, np.float32(0), bits.view(np.float32) * np.float32(2.0**119))


def _values(fields: Fields) -> NDArray[np.float32]:
    packed = bytes_of(fields["low"])
    numbers = np.array(E2M1, np.float32)[join_nibbles(packed.reshape(*packed.shape[:-1], 4, 8))]
    return np.asarray((float8(fields["float8"])[..., None] * numbers).reshape(*packed.shape[:-1], 64), np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def sub(s: int) -> Any:
        def word(i: int) -> Any:
            return e.lookup(e.nibble(block.u32("low", 2 * s + i % 2), high=i >= 2), E2M1_BYTES)

        def scale() -> Any:
            byte = block.u8("float8", s)
            exponent = e.bits(byte, 3, 4)
            normal = e.b.zext(e.b.icmp_unsigned("!=", exponent, e.splat(0)), exponent.type)
            mantissa = e.or_(e.bits(byte, 0, 3), e.shl(normal, 3))
            # Not by float32's subnormal numbers: on a CPU each takes a hundred times as long.
            power = e.shl(e.b.add(e.b.sub(exponent, normal), e.splat(117)), 23)
            is_number = e.b.icmp_unsigned("!=", byte, e.splat(NOT_A_NUMBER))
            return e.fmul(e.to_float(e.b.select(is_number, mantissa, e.splat(0))), e.bits_to_float(power))

        return e.sub(16 * s, word, 4, scale=scale, offset=E2M1_ZERO)

    yield e.chunk(sub(0), sub(1))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    low = plane(base, row, padded_rows, COLS // 64, 0, 8, tl.int32)
    return look_up_e2m1(tl.load(low + (unit * 8 + i // 4 * 2 + i % 2) * 16), i % 4 // 2, ASM)


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    byte = tl.load(plane(base, row, padded_rows, COLS // 64, 32, 4, tl.uint8) + s * 16).to(tl.int32)
    bits = tl.where(byte == 0x7F, 0, (byte & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * 6.646139978924579e35  # 2^119


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 64, 16, 12)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 64, 16, 12)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 64, 16, 12, 0)


NVFP4 = QuantFormat(
    name="NVFP4",
    ggml_type=40,
    block=64,
    block_bytes=36,
    planes=(Plane("low", "<u4", 8, 4), Plane("float8", "u1", 4, 0)),
    values=_values,
    chunks=_chunks,
    steps=2,
    load=_load,
    dot=_dot,
    unit=64,
    tile=_tile,
)
