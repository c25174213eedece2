"""F16: one float16 per element; products are always taken in float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.tiles import element_at, plane_rows
from hotset.quant.triton import jit, plane, tl


def _values(fields: Fields) -> NDArray[np.float32]:
    return np.asarray(fields["value"], np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    yield e.floats(block.f16("value"))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    return tl.load(plane(base, row, padded_rows, COLS, 0, 1, tl.float16) + k * 16).to(tl.float32)


@jit
def _tile(
    base: tl.tensor,
    first: tl.tensor,
    step: tl.tensor,
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    R: tl.constexpr,
    ORDER: tl.constexpr,
) -> tl.tensor:
    low = plane_rows(base, first, padded_rows, COLS, 0, 1, tl.float16, R)[:, None]
    k = step * 32 + element_at(tl.arange(0, 32), ORDER)[None, :]
    return tl.load(low + k * 16)


F16 = QuantFormat(
    name="F16",
    ggml_type=1,
    block=1,
    block_bytes=2,
    planes=(Plane("value", "<f2", 1, 0),),
    values=_values,
    chunks=_chunks,
    integer=False,
    load=_load,
    tile=_tile,
)
