"""F32: one float32 per element; products are always taken in float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.triton import jit, plane, tl


def _values(fields: Fields) -> NDArray[np.float32]:
    return np.asarray(fields["value"], np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    yield e.floats(block.f32("value"))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return tl.load(plane(base, row, padded_rows, COLS, 0, 1, tl.float32) + k * 16)


F32 = QuantFormat(
    name="F32",
    ggml_type=0,
    block=1,
    block_bytes=4,
    planes=(Plane("value", "<f4", 1, 0),),
    values=_values,
    chunks=_chunks,
    integer=False,
    load=_load,
)
