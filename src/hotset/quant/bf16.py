"""BF16: the upper half of a float32 per element; products are always taken in float."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.layout import Fields, Plane, QuantFormat
from hotset.quant.tiles import element_at, plane_rows
from hotset.quant.triton import jit, plane, tl


def _values(fields: Fields) -> NDArray[np.float32]:
    return (fields["value"].astype(np.uint32) << 16).view(np.float32)


def _chunks(e: Any, block: Any) -> Iterator[Any]:
    yield e.floats(e.bits_to_float(e.shl(block.u16("value"), 16)))


@jit
def _load(base: tl.tensor, row: tl.tensor, k: tl.tensor, padded_rows: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    bits = tl.load(plane(base, row, padded_rows, COLS, 0, 1, tl.uint16) + k * 16)
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


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
    low = plane_rows(base, first, padded_rows, COLS, 0, 1, tl.uint16, R)[:, None]
    k = step * 32 + element_at(tl.arange(0, 32), ORDER)[None, :]
    # Eight bits of mantissa fit float16; activations in bfloat16 would cost more than weights below 2^-14 lose.
    return (tl.load(low + k * 16).to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float16)


BF16 = QuantFormat(
    name="BF16",
    ggml_type=30,
    block=1,
    block_bytes=2,
    planes=(Plane("value", "<u2", 1, 0),),
    values=_values,
    chunks=_chunks,
    integer=False,
    load=_load,
    tile=_tile,
)
