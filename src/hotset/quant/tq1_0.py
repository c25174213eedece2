"""TQ1_0: 256 ternary elements, five to a byte, with one float16 d; value = d (q - 1).

A byte is a fraction of 256 with five digits of base three, the first of them the most significant: digit t is the integer part of
3 (3^t byte mod 256) / 256. The 13 words of the plane hold, digit by digit, 40 groups of four elements (words 0-7), 20 (8-11) and 4 (12).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, scaled
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl
from hotset.quant.words import words_dot, words_load, words_tile


def _values(fields: Fields) -> NDArray[np.float32]:
    packed = bytes_of(fields["low"])
    lead = packed.shape[:-1]
    digits = []
    for first, end, n in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        shifted = packed[..., None, first:end] * np.array([1, 3, 9, 27, 81][:n], np.uint8)[:, None]
        digits.append((shifted.astype(np.uint16) * 3 >> 8).reshape(*lead, -1))
    return scaled(fields["block_scale"], np.concatenate(digits, axis=-1), 1)


@jit
def digit_of_group(g: tl.tensor) -> tl.tensor:
    """Which digit group g of four elements (0-63) is; plain arithmetic, for Triton and for LLVM."""
    in_first = ((g - 40) >> 31) & 1
    in_last = (((g - 60) >> 31) & 1) ^ 1
    in_second = (in_first | in_last) ^ 1
    return in_first * (g >> 3) + in_second * ((g - 40) >> 2) + in_last * (g - 60)


@jit
def word_of_group(g: tl.tensor) -> tl.tensor:
    """Which word group g of four elements (0-63) lies in."""
    in_first = ((g - 40) >> 31) & 1
    in_last = (((g - 60) >> 31) & 1) ^ 1
    in_second = (in_first | in_last) ^ 1
    return in_first * (g & 7) + in_second * ((g & 3) + 8) + in_last * 12


@jit
def power_of_three(t: tl.tensor) -> tl.tensor:
    """3^t for t = 0-4."""
    return ((t & 1) * 2 + 1) * (((t >> 1) & 1) * 8 + 1) * (((t >> 2) & 1) * 80 + 1)


@jit
def digits_of_word(word: tl.tensor, power: tl.tensor) -> tl.tensor:
    """Take the digit of weight 1 / (3 power) from each of four bytes."""
    even = ((word & 0x00FF00FF) * power) & 0x00FF00FF
    odd = (((word >> 8) & 0x00FF00FF) * power) & 0x00FF00FF
    return (((even * 3) >> 8) & 0x00030003) | ((odd * 3) & 0x03000300)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        g = e.apply(lambda step: step * 8 + i, block.step)
        power = e.broadcast(e.apply(power_of_three, e.apply(digit_of_group, g)))
        return e.apply(digits_of_word, block.u32("low", e.apply(word_of_group, g)), power)

    yield e.chunk(e.sub(0, word, 8, scale=lambda: block.f16("block_scale"), offset=1))


@jit
def _word(
    base: tl.tensor, row: tl.tensor, unit: tl.tensor, i: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, ASM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    g = unit % 8 * 8 + i
    low = plane(base, row, padded_rows, COLS // 256, 0, 13, tl.int32)
    word = tl.load(low + (unit // 8 * 13 + word_of_group(g)) * 16)
    return digits_of_word(word, power_of_three(digit_of_group(g)))


@jit
def _scale(base: tl.tensor, row: tl.tensor, s: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    d = plane(base, row, padded_rows, COLS // 256, 52, 1, tl.float16)
    return tl.load(d + s // 8 * 16).to(tl.float32)


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return words_load(base, row, k, padded_rows, COLS, _word, _scale, None, 32, 32, 1)


@jit
def _dot(
    acc: tl.tensor, base: tl.tensor, row: tl.tensor, unit: tl.tensor, ok: tl.tensor, activation: tl.tensor,
    padded_rows: tl.tensor, COLS: tl.constexpr, DP4A: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A, _word, _scale, None, 32, 32, 1)


@jit
def _tile(
    base: tl.tensor, first: tl.tensor, step: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr, R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    return words_tile(base, first, step, padded_rows, COLS, R, ORDER, _word, _scale, None, 32, 32, 1, 0)


TQ1_0 = QuantFormat(
    name="TQ1_0",
    ggml_type=34,
    block=256,
    block_bytes=54,
    planes=(Plane("low", "<u4", 13, 0, whole=True), Plane("block_scale", "<f2", 1, 52, whole=True)),
    values=_values,
    chunks=_chunks,
    steps=8,
    load=_load,
    dot=_dot,
    unit=32,
    tile=_tile,
)
