"""Q5_K: Q4_K with a fifth bit per element: bit s of byte j of `high` belongs to element j of sub-block s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, nibbles_by_64, scaled_with_minimum
from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.q4_k import join, split, sub_block


def _values(fields: Fields) -> NDArray[np.float32]:
    fifth = np.unpackbits(bytes_of(fields["high"])[..., None, :], axis=-2, count=None, bitorder="little")
    q = nibbles_by_64(bytes_of(fields["low"]))
    return scaled_with_minimum(fields, q | (fifth.reshape(q.shape) << 4))


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def words(s: int) -> Any:
        c, high = divmod(s, 2)
        return lambda i: e.or_(
            e.nibble(block.u32("low", 8 * c + i), high=bool(high)), e.bit(block.u32("high", i), s, to=4)
        )

    for c in range(4):
        yield e.chunk(*(sub_block(e, block, s, words(s)) for s in (2 * c, 2 * c + 1)))


Q5_K = QuantFormat(
    name="Q5_K",
    ggml_type=13,
    block=256,
    block_bytes=176,
    planes=(
        Plane("low", "<u4", 32, 48),
        Plane("high", "<u4", 8, 16),
        Plane("scale", "u1", 8),
        Plane("minimum", "u1", 8),
        Plane("block_scale", "<f2", 2, 0),
    ),
    values=_values,
    chunks=_chunks,
    split=split,
    join=join,
)
