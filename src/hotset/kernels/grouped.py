"""Matrix products of a chunk on tensor cores: the rows of each expert together, whose matrices lie where the address table says.

hidden[p] = silu(gate x[row]) * up x[row],  z[pair] = down hidden[p],  out[row] += sum_j weight[row, j] z[row k + j]
(p = place in the plan, pair = plan.pairs[p] = row k + j);   dense: out[t] = W x[t]

Weights are unpacked to float16 in registers and multiplied, as the left operand, with float16 activations; sums are float32. An
element's products are added in the order of k by steps of one size, so that its bits depend on its row and its matrix alone: not on the
other rows of a tile, the chunk or the wave. F32 matrices, and those off the block of 32 columns, are multiplied in float32.

`hidden` and `z` are float16 with a power of two per row and tile of columns: as float32 they would take 400 MB for 4,096 rows of
Qwen3-30B-A3B. bfloat16 would hold the range but lose 1e-3, float16 alone would lose the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton
from triton import cdiv

from hotset.kernels.aot import CompileCase
from hotset.kernels.half import COARSE, ChunkRows, in_halves, level, power_of_two
from hotset.kernels.tuning import CHUNK_TILES, ChunkTile, ChunkTuning, chunk_tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.tiles import GAIN, ORDER_WARPGROUP
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.chunk_plan import ChunkPlan
    from hotset.kernels.matvec import DeviceMatrix

COMBINE_BLOCK = 512
NO_ROW = tl.constexpr(0)


# UNIT > 0: MULTIPLY is the format's `tile`, x float16; UNIT == 0: it is the format's `load`, x float32.
@jit
def chunk_product(
    base: tl.tensor,  # uint8, the matrix's planes
    first: tl.tensor,  # the first of R rows of the matrix
    x: tl.tensor,  # [m, COLS]
    row: tl.tensor,  # [M], rows of x
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    UNROLL: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
) -> tl.tensor:
    """Multiply R rows of a matrix by M rows of x: float32 [R, M]."""
    at = x + row.to(tl.int64)[:, None] * COLS
    acc = tl.zeros([R, row.shape[0]], tl.float32)
    if UNIT > 0:
        k = tl.arange(0, UNIT)[None, :]
        for step in tl.range(0, COLS // UNIT, loop_unroll_factor=UNROLL):
            w = MULTIPLY(base, first, step, ROWS, COLS, R, ORDER)
            acc = tl.dot(w, tl.trans(tl.load(at + (step * UNIT + k))), acc)
    else:
        r = first + tl.arange(0, R)[:, None]
        for step in tl.range(0, COLS, 32):
            k = step + tl.arange(0, 32)[None, :]
            w = MULTIPLY(base, r, tl.minimum(k, COLS - 1), ROWS, COLS)
            acc = tl.dot(w, tl.trans(tl.load(at + k, mask=k < COLS, other=0)), acc, input_precision="ieee")
    return acc


@jit
def in_order(value: tl.tensor, R: tl.constexpr, ORDER: tl.constexpr) -> tl.tensor:
    """Bring columns [M, R] into the order of quant/tiles.py."""
    M: tl.constexpr = value.shape[0]
    value = tl.reshape(value, [M, R // 32, 2, 4, 2, 2])  # 32 columns: e, w, b // 2, b % 2
    if ORDER == 0:
        value = tl.permute(value, (0, 1, 2, 5, 3, 4))
    else:
        value = tl.permute(value, (0, 1, 3, 2, 5, 4))
    return tl.reshape(value, [M, R])


@jit
def store_part(
    value: tl.tensor,  # float32 [R, M], rows of the matrix by tokens
    valid: tl.tensor,  # [M]
    at: tl.tensor,  # int64 [M], each token's row
    first: tl.tensor,  # the first of its columns
    out: tl.tensor,  # float16 [rows, WIDTH]
    part_scale: tl.tensor,  # float32 [rows, WIDTH / R]
    WIDTH: tl.constexpr,
    ORDER: tl.constexpr,  # -1: as they are
    R: tl.constexpr,
) -> None:
    scale, inverse = power_of_two(tl.max(tl.abs(value), 0), COARSE_BITS)
    half = tl.trans((value * inverse[None, :]).to(tl.float16))
    if ORDER >= 0:
        half = in_order(half, R, ORDER)
    tl.store(out + at[:, None] * WIDTH + (first + tl.arange(0, R))[None, :], half, mask=valid[:, None])
    tl.store(part_scale + at * (WIDTH // R) + first // R, scale, mask=valid)


COARSE_BITS = tl.constexpr(COARSE)


@jit
def gate_up_tile(
    base: tl.tensor,
    first: tl.tensor,
    x: tl.tensor,  # (half, scale, f32)
    row: tl.tensor,  # [M], the rows of x
    place: tl.tensor,  # int64 [M], the rows of hidden
    valid: tl.tensor,  # [M]
    hidden: tl.tensor,  # (half or None, part scale or None, f32 or None)
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    F: tl.constexpr,
    GATE: tl.constexpr,
    UP: tl.constexpr,
    GATE_MULTIPLY: tl.constexpr,
    UP_MULTIPLY: tl.constexpr,
    GATE_UNIT: tl.constexpr,
    UP_UNIT: tl.constexpr,
    GATE_GAIN: tl.constexpr,
    UP_GAIN: tl.constexpr,
    UNROLL: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
) -> None:
    x_half, x_scale, x_f32 = x
    half, part_scale, f32 = hidden
    if (GATE_MULTIPLY == UP_MULTIPLY) & (GATE_UNIT > 0):
        k = tl.arange(0, GATE_UNIT)[None, :]
        at = x_half + row.to(tl.int64)[:, None] * COLS
        gate = tl.zeros([R, row.shape[0]], tl.float32)
        up = tl.zeros([R, row.shape[0]], tl.float32)
        for step in tl.range(0, COLS // GATE_UNIT, loop_unroll_factor=UNROLL):
            right = tl.trans(tl.load(at + (step * GATE_UNIT + k)))
            gate = tl.dot(GATE_MULTIPLY(base + GATE, first, step, ROWS, COLS, R, ORDER), right, gate)
            up = tl.dot(UP_MULTIPLY(base + UP, first, step, ROWS, COLS, R, ORDER), right, up)
