"""F32: one float32 per element; products are always taken in float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.layout import Fields, Plane, QuantFormat


def _values(fields: Fields) -> NDArray[np.float32]:
    return np.asarray(fields["value"], np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    yield e.floats(block.f32("value"))


F32 = QuantFormat(
    name="F32",
    ggml_type=0,
    block=1,
    block_bytes=4,
    planes=(Plane("value", "<f4", 1, 0),),
    values=_values,
    chunks=_chunks,
    integer=False,
)
