"""Q4_K: 256 elements in eight sub-blocks of 32; 6-bit scales and minima, float16 d and dmin; value = d scale q - dmin minimum.

32 bytes hold two sub-blocks: low nibbles the first, high nibbles the second. The 12 bytes of 6-bit numbers become 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, nibbles_by_64, pack_six_bits, scaled_with_minimum, unpack_six_bits
from hotset.quant.layout import Bytes, Fields, Plane, QuantFormat


def split(blocks: Bytes) -> dict[str, NDArray[Any]]:
    scale, minimum = unpack_six_bits(blocks[..., 4:16])
    return {"scale": scale, "minimum": minimum}


def join(fields: Fields, blocks: Bytes) -> None:
    blocks[..., 4:16] = pack_six_bits(fields["scale"], fields["minimum"])


def sub_block(e: Any, block: Any, s: int, word: Any) -> Any:
    """Sub-block `s` with its scale and minimum; Q5_K shares it."""

    def scale() -> Any:
        return e.fmul(block.f16("block_scale", 0), e.to_float(block.u8("scale", s)))

    def minimum() -> Any:
        return e.fmul(block.f16("block_scale", 1), e.to_float(block.u8("minimum", s)))

    return e.sub(32 * s, word, 8, scale=scale, minimum=minimum)


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled_with_minimum(fields, nibbles_by_64(bytes_of(fields["low"])))


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def words(c: int, high: bool) -> Any:
        return lambda i: e.nibble(block.u32("low", 8 * c + i), high=high)

    for c in range(4):
        yield e.chunk(*(sub_block(e, block, 2 * c + high, words(c, bool(high))) for high in (0, 1)))


Q4_K = QuantFormat(
    name="Q4_K",
    ggml_type=12,
    block=256,
    block_bytes=144,
    planes=(
        Plane("low", "<u4", 32, 16),
        Plane("scale", "u1", 8),
        Plane("minimum", "u1", 8),
        Plane("block_scale", "<f2", 2, 0),
    ),
    values=_values,
    chunks=_chunks,
    split=split,
    join=join,
)
