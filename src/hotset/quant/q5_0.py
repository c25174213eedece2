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

BIT_OF_ELEMENT = np.array([8 * (k % 4) + k // 4 for k in range(32)])


def _split(blocks: Bytes) -> dict[str, NDArray[Any]]:
    bits = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    spread = np.empty_like(bits)
    spread[..., BIT_OF_ELEMENT] = bits
    return {"high": np.packbits(spread, axis=-1, bitorder="little").view("<u4")}


def _fifth_bits(fields: Fields) -> NDArray[np.uint8]:
    return np.unpackbits(bytes_of(fields["high"]), axis=-1, bitorder="little")[..., BIT_OF_ELEMENT]


def _join(fields: Fields, blocks: Bytes) -> None:
    blocks[..., 2:6] = np.packbits(_fifth_bits(fields), axis=-1, bitorder="little")


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled(fields["block_scale"], join_nibbles(bytes_of(fields["low"])) | (_fifth_bits(fields) << 4), 16)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        return e.or_(e.nibble(block.u32("low", i % 4), high=i >= 4), e.bit(block.u32("high"), i, to=4))

    yield e.chunk(e.sub(0, word, 8, scale=lambda: block.f16("block_scale"), offset=16))


Q5_0 = QuantFormat(
    name="Q5_0",
    ggml_type=6,
    block=32,
    block_bytes=22,
    planes=(Plane("low", "<u4", 4, 6), Plane("high", "<u4", 1), Plane("block_scale", "<f2", 1, 0)),
    values=_values,
    chunks=_chunks,
    split=_split,
    join=_join,
)
