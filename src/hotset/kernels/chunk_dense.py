"""A quantised matrix times the rows of a chunk, on tensor cores.

out[t] = W x[t], + out[t] if asked
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import triton

from hotset.kernels.chunk_product import (
    INPUT_TYPES,
    LAYOUTS,
    chunk_case,
    chunk_product,
    launch_options,
    matrix_constants,
    true_size,
)
from hotset.kernels.counts import cdiv
from hotset.kernels.half import ChunkRows, in_halves
from hotset.kernels.tuning import CHUNK_TILES, ChunkTile, ChunkTuning, chunk_tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout
from hotset.quant.tiles import ORDER_WARPGROUP
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.aot import CompileCase
    from hotset.kernels.matvec import DeviceMatrix
    from hotset.quant.layout import QuantFormat


@jit
def dense_tile(
    base: tl.tensor,
    first: tl.tensor,
    x: tl.tensor,
    start: tl.tensor,
    m: tl.tensor,
    out: tl.tensor,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    UNROLL: tl.constexpr,
    GAIN: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    row = start + tl.arange(0, M)
    valid = (row < m)[None, :]
    source = tl.minimum(row, m - 1)
    y = chunk_product(base, first, x, source, ROWS, COLS, MULTIPLY, UNIT, UNROLL, ORDER, R)
    y = true_size(y, x, source, GAIN)
    at = out + row.to(tl.int64)[None, :] * ROWS + (first + tl.arange(0, R))[:, None]
    if ADD:
        y += tl.load(at, mask=valid, other=0)
    tl.store(at, y, mask=valid)


@triton.jit(do_not_specialize=["m"])  # type: ignore[untyped-decorator]
def dense_kernel(
    half: tl.tensor,  # float16 [m, COLS] or None
    scale: tl.tensor,  # float32 [m] or None
    f32: tl.tensor,  # float32 [m, COLS]
    base: tl.tensor,  # uint8, the matrix's planes
    out: tl.tensor,  # float32 [m, ROWS]
    m: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    UNROLL: tl.constexpr,
    GAIN: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
    TOKENS: tl.constexpr,
    FEW: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    first = tl.program_id(0) * R
    start = tl.program_id(1) * TOKENS
    x = (half, scale, f32)
    if m - start <= FEW:
        dense_tile(base, first, x, start, m, out, FEW, ROWS, COLS, MULTIPLY, UNIT, UNROLL, GAIN, ORDER, R, ADD)
    else:
        dense_tile(base, first, x, start, m, out, TOKENS, ROWS, COLS, MULTIPLY, UNIT, UNROLL, GAIN, ORDER, R, ADD)


def dense(
    x: ChunkRows, weight: DeviceMatrix, out: torch.Tensor, *, add: bool = False, tuning: ChunkTuning | None = None
) -> None:
    """Multiply rows x [m, cols] by a matrix into out float32 [m, padded_rows], or add to it."""
    layout = weight.layout
    m, cols = x.shape
    assert cols == layout.cols
    assert x.f32.is_contiguous()
    assert out.shape == (m, layout.padded_rows)
    assert out.is_contiguous()
    tuning = tuning or chunk_tuning_for(out.device)
    tile = _dense_tile(layout, m, tuning)
    constants = _dense_launch(layout, tile, tuning.order)
    dense_kernel[(constants["ROWS"] // constants["R"], cdiv(m, tile.tokens))](
        x.half,
        x.scale,
        x.f32,
        weight.data,
        out,
        m,
        ADD=add,
        **constants,
    )


# The same at every launch of a matrix, and slow to put together.
@lru_cache(LAYOUTS)
def _dense_launch(layout: MatrixLayout, tile: ChunkTile, order: int) -> dict[str, Any]:
    return {
        "ROWS": layout.padded_rows,
        "COLS": layout.cols,
        "ORDER": order,
        "R": tile.fit(layout.padded_rows),
        "TOKENS": tile.tokens,
        "FEW": tile.few,
        **matrix_constants(layout, tile),
        **launch_options(tile),
    }


def _dense_tile(matrix: MatrixLayout, m: int, tuning: ChunkTuning) -> ChunkTile:
    if not in_halves(matrix.fmt, matrix.cols):
        return tuning.float32
    wide = tuning.dense
    n_programs = matrix.padded_rows // wide.fit(matrix.padded_rows) * cdiv(m, wide.tokens)
    return wide if n_programs >= tuning.n_multiprocessors else tuning.narrow


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: every format in the narrow tile, and the wide one once."""
    tuning = ChunkTuning(order=ORDER_WARPGROUP, n_multiprocessors=132, **CHUNK_TILES["hopper"])
    wide = next(fmt for fmt in FORMATS.values() if fmt.name == "Q4_K")
    return [*(_case(fmt, tuning, tuning.narrow) for fmt in FORMATS.values()), _case(wide, tuning, tuning.dense)]


def _case(fmt: QuantFormat, tuning: ChunkTuning, tile: ChunkTile) -> CompileCase:
    layout = MatrixLayout(fmt, 4096, 2048)
    if not in_halves(fmt, layout.cols):
        tile = tuning.float32
    constants = {
        "ROWS": layout.padded_rows,
        "COLS": layout.cols,
        "ORDER": tuning.order,
        "R": tile.fit(layout.padded_rows),
        "TOKENS": tile.tokens,
        "FEW": tile.few,
        "ADD": False,
        **matrix_constants(layout, tile),
    }
    types = INPUT_TYPES | {"base": "*u8", "out": "*fp32", "m": "i32"}
    return chunk_case(f"dense chunk {fmt.name} {tile.tokens}", dense_kernel, types, constants, tile)
