"""BF16: the upper half of a float32 per element; products are always taken in float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.layout import Fields, Plane, QuantFormat


def _values(fields: Fields) -> NDArray[np.float32]:
    return (fields["value"].astype(np.uint32) << 16).view(np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    yield e.floats(e.bits_to_float(e.shl(block.u16("value"), 16)))


BF16 = QuantFormat(
    name="BF16",
    ggml_type=30,
    block=1,
    block_bytes=2,
    planes=(Plane("value", "<u2", 1, 0),),
    values=_values,
    chunks=_chunks,
    integer=False,
)
