"""Products of a chunk's rows with a few rows of a quantised matrix on tensor cores: what experts and dense matrices share.

Weights are unpacked to float16 in registers and multiplied, as the left operand, with float16 activations; sums are float32. The
products of an element are added in the order of k by steps of one size, so that its bits depend on its row and its matrix alone: not
on the other rows of a tile. F32 matrices, and those off the block of 32 columns, are multiplied in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotset.kernels.aot import CompileCase
from hotset.kernels.half import in_halves
from hotset.quant.tiles import GAIN
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    from hotset.kernels.tuning import ChunkTile
    from hotset.quant.layout import MatrixLayout

# The three forms of activations, an `x` below, as a kernel takes them.
INPUT_TYPES = {"half": "*fp16", "scale": "*fp32", "f32": "*fp32"}


# UNIT > 0: MULTIPLY is the format's `tile`, and x is taken in float16; UNIT == 0: it is the format's `load`, and x is float32.
@jit
def chunk_product(
    base: tl.tensor,  # uint8, the matrix's planes
    first: tl.tensor,  # the first of R rows of the matrix
    x: tl.tensor,  # (half, scale, f32): [m, COLS], [m], [m, COLS]
    row: tl.tensor,  # [M], rows of x
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    UNROLL: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
) -> tl.tensor:
    """Multiply R rows of a matrix by M rows of x: float32 [R, M], GAIN / scale times too large."""
    half, _, f32 = x
    acc = tl.zeros([R, row.shape[0]], tl.float32)
    if UNIT > 0:
        at = half + row.to(tl.int64)[:, None] * COLS + tl.arange(0, UNIT)[None, :]
        for step in tl.range(0, COLS // UNIT, loop_unroll_factor=UNROLL):
            w = MULTIPLY(base, first, step, ROWS, COLS, R, ORDER)
            acc = tl.dot(w, tl.trans(tl.load(at + step * UNIT)), acc)
    else:
        r = first + tl.arange(0, R)[:, None]
        at = f32 + row.to(tl.int64)[:, None] * COLS
        for step in tl.range(0, COLS, 32):
            k = step + tl.arange(0, 32)[None, :]
            w = MULTIPLY(base, r, tl.minimum(k, COLS - 1), ROWS, COLS)
            acc = tl.dot(w, tl.trans(tl.load(at + k, mask=k < COLS, other=0)), acc, input_precision="ieee")
    return acc


# As two products, with each part of x brought in once. Only for float16.
@jit
def two_products(
    base: tl.tensor,
    other: tl.tensor,
    first: tl.tensor,
    x: tl.tensor,
    row: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    UNROLL: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
) -> tl.tensor:
    half, _, _ = x
    at = half + row.to(tl.int64)[:, None] * COLS + tl.arange(0, UNIT)[None, :]
    a = tl.zeros([R, row.shape[0]], tl.float32)
    b = tl.zeros([R, row.shape[0]], tl.float32)
    for step in tl.range(0, COLS // UNIT, loop_unroll_factor=UNROLL):
        right = tl.trans(tl.load(at + step * UNIT))
        a = tl.dot(MULTIPLY(base, first, step, ROWS, COLS, R, ORDER), right, a)
        b = tl.dot(MULTIPLY(other, first, step, ROWS, COLS, R, ORDER), right, b)
    return a, b


@jit
def true_size(acc: tl.tensor, x: tl.tensor, row: tl.tensor, GAIN: tl.constexpr) -> tl.tensor:
    """Give products their size; GAIN is 0 where they were taken in float32."""
    if GAIN > 0:
        _, scale, _ = x
        acc *= (tl.load(scale + row) * (1.0 / GAIN))[None, :]
    return acc


# Layouts whose constants are kept: more than the matrices of a model.
LAYOUTS = 4096


def matrix_constants(matrix: MatrixLayout, tile: ChunkTile) -> dict[str, Any]:
    """Return the constants of `chunk_product` and `true_size` for a matrix."""
    fmt = matrix.fmt
    if not in_halves(fmt, matrix.cols):
        return {"MULTIPLY": fmt.load, "UNIT": 0, "UNROLL": 1, "GAIN": 0}
    unroll = max(1, tile.depth // fmt.tile_unit)
    return {"MULTIPLY": fmt.tile, "UNIT": fmt.tile_unit, "UNROLL": unroll, "GAIN": GAIN if fmt.integer else 1}


def launch_options(tile: ChunkTile) -> dict[str, Any]:
    """Return how a kernel of this tile is compiled."""
    return {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False}


def chunk_case(
    name: str, kernel: Any, types: dict[str, str], constants: dict[str, Any], tile: ChunkTile
) -> CompileCase:
    """Return a variant to compile ahead of time."""
    return CompileCase(name, kernel, types, constants, tile.warps, num_stages=tile.stages)
