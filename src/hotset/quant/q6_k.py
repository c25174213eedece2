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
)
