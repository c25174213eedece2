"""Q4_0: 32 elements, one float16 scale d; byte j holds element j in its low and element j + 16 in its high nibble; value = d (q - 8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, join_nibbles, scaled
from hotset.quant.layout import Fields, Plane, QuantFormat


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled(fields["block_scale"], join_nibbles(bytes_of(fields["low"])), 8)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:
        return e.nibble(block.u32("low", i % 4), high=i >= 4)

    yield e.chunk(e.sub(0, word, 8, scale=lambda: block.f16("block_scale"), offset=8))


Q4_0 = QuantFormat(
    name="Q4_0",
    ggml_type=2,
    block=32,
    block_bytes=18,
    planes=(Plane("low", "<u4", 4, 2), Plane("block_scale", "<f2", 1, 0)),
    values=_values,
    chunks=_chunks,
)
