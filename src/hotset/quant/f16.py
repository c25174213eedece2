"""F16: one float16 per element; products are always taken in float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.layout import Fields, Plane, QuantFormat


def _values(fields: Fields) -> NDArray[np.float32]:
    return np.asarray(fields["value"], np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    yield e.floats(block.f16("value"))


F16 = QuantFormat(
    name="F16",
    ggml_type=1,
    block=1,
    block_bytes=2,
    planes=(Plane("value", "<f2", 1, 0),),
    values=_values,
    chunks=_chunks,
    integer=False,
)
