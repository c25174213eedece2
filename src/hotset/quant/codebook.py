"""What the IQ formats share: entries of a codebook (quant/grids.py) give neighbouring elements their magnitudes, bits their signs.

Magnitudes are below 64: as unsigned bytes the numbers are shifted by 64. IQ1's numbers are eight times code - 1 +- 1/8, shifted by 9.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.codes import signed_around_64, spread_bits, spread_pairs, spread_threes
from hotset.quant.grids import codes
from hotset.quant.triton import jit, tl

LEVELS = {
    "iq1": (-1, 0, 1),
    "iq2": (8, 25, 43),
    "iq3_xxs": (4, 12, 20, 28, 36, 44, 52, 62),
    "iq3_s": (1, 3, 5, 7, 9, 11, 13, 15),
}
SIGNED_ZERO, IQ1_ZERO = 64, 9
# Seven signs stand for eight, of which an even number is negative.
EIGHT_SIGNS = np.array([i | (i.bit_count() % 2) << 7 for i in range(128)], np.uint8)


@cache
def levels(name: str) -> NDArray[np.float32]:
    """A codebook's magnitudes, float32 [entries, 8 or 4]; IQ1's numbers have signs of their own."""
    return np.array(LEVELS.get(name) or LEVELS[name[:3]], np.float32)[codes(name)]


def signs(bits: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bytes of eight bits [...] -> 1 or, where a bit is set, -1 [..., 8]."""
    negative = np.unpackbits(bits[..., None], axis=-1, bitorder="little")
    return np.where(negative, np.float32(-1), np.float32(1))


def scaled_numbers(scale: NDArray[np.float32], numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Scales [..., blocks, subs] times numbers [..., blocks, 256] of equal runs."""
    by_sub = numbers.reshape(*scale.shape, -1)
    return np.asarray((scale[..., None] * by_sub).reshape(*scale.shape[:-1], 256), np.float32)


def words_of_bytes(words: NDArray[Any]) -> NDArray[np.uint16]:
    """Words [..., n] -> their bytes as 16-bit numbers [..., 4 n], to which higher bits are added."""
    return np.ascontiguousarray(words).view(np.uint8).astype(np.uint16)


def two_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes [..., n] -> low and high nibble of each [..., 2 n]."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


@jit
def iq1_word(entry: tl.tensor, half: tl.tensor, negative: tl.tensor) -> tl.tensor:
    """Four of eight elements, shifted by a negative eighth (1) or a positive one (0)."""
    return spread_pairs((entry >> (8 * half)) & 255) * 8 + (negative ^ 1) * 0x02020202


@jit
def iq2_word(entry: tl.tensor, half: tl.tensor, eight_signs: tl.tensor) -> tl.tensor:
    """Four of eight elements."""
    each = spread_pairs((entry >> (8 * half)) & 255)
    magnitudes = each * 17 + ((each >> 1) & 0x01010101) + 0x08080808
    return signed_around_64(magnitudes, spread_bits((eight_signs >> (4 * half)) & 15))


@jit
def iq3_xxs_word(entry: tl.tensor, four_signs: tl.tensor) -> tl.tensor:
    """An entry's four elements; the largest magnitude is 62, not 60."""
    each = spread_threes(entry)
    largest = each & (each >> 1) & (each >> 2) & 0x01010101
    return signed_around_64(each * 8 + largest * 2 + 0x04040404, spread_bits(four_signs))


@jit
def iq3_s_word(entry: tl.tensor, four_signs: tl.tensor) -> tl.tensor:
    """An entry's four elements."""
    return signed_around_64(spread_threes(entry) * 2 + 0x01010101, spread_bits(four_signs))


@jit
def entry_at(base: tl.tensor, index: tl.tensor) -> tl.tensor:
    """Load an entry of the table that stands before a matrix's planes."""
    return tl.load(base.to(tl.pointer_type(tl.uint16)) + index).to(tl.int32)
