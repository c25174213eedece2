"""Q8_0: 32 elements int8 with one float16 scale d; value = d q."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import bytes_of, scaled
from hotset.quant.layout import Fields, Plane, QuantFormat


def _values(fields: Fields) -> NDArray[np.float32]:
    return scaled(fields["block_scale"], bytes_of(fields["low"]).view(np.int8), 0)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    def word(i: int) -> Any:  # q + 128: the host's byte products want one unsigned side
        return e.xor(block.u32("low", i), 0x80808080)

    yield e.chunk(e.sub(0, word, 8, scale=lambda: block.f16("block_scale"), offset=128, wide=True))


Q8_0 = QuantFormat(
    name="Q8_0",
    ggml_type=8,
    block=32,
    block_bytes=34,
    planes=(Plane("low", "<u4", 8, 2), Plane("block_scale", "<f2", 1, 0)),
    values=_values,
    chunks=_chunks,
)
