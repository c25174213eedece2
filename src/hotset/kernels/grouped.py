"""Matrix products of a chunk on tensor cores: the rows of each expert together, whose matrices lie where the address table says.

hidden[p] = silu(gate x[row]) * up x[row],  z[pair] = down hidden[p],  out[row] += sum_j weight[row, j] z[row k + j]
(p = place in the plan, pair = plan.pairs[p] = row k + j);   dense: out[t] = W x[t], + out[t] if asked

Weights are unpacked to float16 in registers and multiplied, as the left operand, with float16 activations; sums are float32. The
products of an element are added in the order of k by steps of one size, so that its bits depend on its row and its matrix alone: not
on the other rows of a tile, the chunk or the wave. F32 matrices, and those off the block of 32 columns, are multiplied in float32.

`hidden` and `z` are float16 with a power of two per row: as float32 they would take 370 MB for 4,096 rows of Qwen3-30B-A3B. bfloat16
would hold the range but lose 1e-3, float16 alone would lose the range. A row of `hidden` is computed in tiles of columns, each with a
scale of its own until `level` makes them one. A row of `z` takes 2^12 times the scale of its `hidden`, whose halves are below 2^15: a
row of weights may add up to 8,192.
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
    from hotset.quant.layout import QuantFormat

COMBINE_BLOCK = 512
Z_SCALE = tl.constexpr(4096.0)
COARSE_BITS = tl.constexpr(COARSE)


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


@jit
def in_order(value: tl.tensor, M: tl.constexpr, R: tl.constexpr, ORDER: tl.constexpr) -> tl.tensor:
    """Bring columns [M, R] into the order of quant/tiles.py."""
    value = tl.reshape(value, [M, R // 32, 2, 4, 2, 2])  # of 32 columns: e, w, b // 2, b % 2
    if ORDER == 0:
        value = tl.permute(value, (0, 1, 2, 5, 3, 4))
    else:
        value = tl.permute(value, (0, 1, 3, 2, 5, 4))
    return tl.reshape(value, [M, R])


@jit
def store_hidden(
    value: tl.tensor,  # float32 [R, M]
    valid: tl.tensor,  # [M]
    place: tl.tensor,  # int64 [M]
    first: tl.tensor,  # the first of R columns
    hidden: tl.tensor,  # (half, part scale, f32): float16 [pairs, F], float32 [pairs, F / R], None; or None, None, float32 [pairs, F]
    F: tl.constexpr,
    R: tl.constexpr,
    ORDER: tl.constexpr,
) -> None:
    half, part_scale, f32 = hidden
    column = first + tl.arange(0, R)
    if half is None:
        tl.store(f32 + place[None, :] * F + column[:, None], value, mask=valid[None, :] & (column < F)[:, None])
    else:
        scale, inverse = power_of_two(tl.max(tl.abs(value), 0), COARSE_BITS)
        small = in_order(tl.trans((value * inverse[None, :]).to(tl.float16)), valid.shape[0], R, ORDER)
        tl.store(half + place[:, None] * F + column[None, :], small, mask=valid[:, None])
        tl.store(part_scale + place * (F // R) + first // R, scale, mask=valid)


@jit
def gate_up_tile(
    base: tl.tensor,
    first: tl.tensor,
    x: tl.tensor,
    pairs: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    hidden: tl.tensor,
    M: tl.constexpr,
    K: tl.constexpr,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GATE: tl.constexpr,
    UP: tl.constexpr,
    GATE_MULTIPLY: tl.constexpr,
    UP_MULTIPLY: tl.constexpr,
    GATE_UNIT: tl.constexpr,
    UP_UNIT: tl.constexpr,
    GATE_UNROLL: tl.constexpr,
    UP_UNROLL: tl.constexpr,
    GATE_GAIN: tl.constexpr,
    UP_GAIN: tl.constexpr,
    ALIKE: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
) -> None:
    i = tl.arange(0, M)
    valid = i < count
    row = tl.load(pairs + start + i, mask=valid, other=0) // K
    if ALIKE:
        gate, up = two_products(
            base + GATE, base + UP, first, x, row,
            ROWS, COLS, GATE_MULTIPLY, GATE_UNIT, GATE_UNROLL, ORDER, R,
        )  # fmt: skip
    else:
        gate = chunk_product(base + GATE, first, x, row, ROWS, COLS, GATE_MULTIPLY, GATE_UNIT, GATE_UNROLL, ORDER, R)
        up = chunk_product(base + UP, first, x, row, ROWS, COLS, UP_MULTIPLY, UP_UNIT, UP_UNROLL, ORDER, R)
    gate = true_size(gate, x, row, GATE_GAIN)
    up = true_size(up, x, row, UP_GAIN)
    y = gate / (1.0 + tl.exp(-gate)) * up
    store_hidden(y, valid, (start + i).to(tl.int64), first, hidden, F, R, ORDER)


@jit
def down_tile(
    base: tl.tensor,
    first: tl.tensor,
    hidden: tl.tensor,
    pairs: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    z: tl.tensor,
    M: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    UNROLL: tl.constexpr,
    GAIN: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
) -> None:
    i = tl.arange(0, M)
    valid = i < count
    place = start + tl.minimum(i, count - 1)
    y = chunk_product(base, first, hidden, place, ROWS, COLS, MULTIPLY, UNIT, UNROLL, ORDER, R)
    pair = tl.load(pairs + place).to(tl.int64)
    values, z_scale = z
    if GAIN > 0:
        y *= 1.0 / (GAIN * Z_SCALE)
        if first == 0:
            _, scale, _ = hidden
            tl.store(z_scale + pair, tl.load(scale + place) * Z_SCALE, mask=valid)
    at = values + pair[None, :] * ROWS + (first + tl.arange(0, R))[:, None]
    tl.store(at, y.to(values.dtype.element_ty), mask=valid[None, :])


# Programs take the items of a wave, tile by tile and cut by cut, in turn: neighbours share an expert's matrices or a tile's rows.
# `wave` counts up: specialising would compile variants.
@triton.jit(do_not_specialize=["wave"])  # type: ignore[untyped-decorator]
def gate_up_kernel(
    half: tl.tensor,  # float16 [m, COLS] or None
    scale: tl.tensor,  # float32 [m] or None
    f32: tl.tensor,  # float32 [m, COLS]
    address: tl.tensor,  # int64 [experts]
    pairs: tl.tensor,  # int32 [pairs]
    tiles: tl.tensor,  # int32 [tiles, 3]
    wave_tiles: tl.tensor,  # int32 [waves + 1]
    hidden_half: tl.tensor,  # float16 [pairs, F] or None
    hidden_part: tl.tensor,  # float32 [pairs, F / R] or None
    hidden_f32: tl.tensor,  # float32 [pairs, F] or None
    wave: tl.tensor,
    K: tl.constexpr,
    F: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    GATE: tl.constexpr,  # the start of each matrix in the span
    UP: tl.constexpr,
    GATE_MULTIPLY: tl.constexpr,
    UP_MULTIPLY: tl.constexpr,
    GATE_UNIT: tl.constexpr,
    UP_UNIT: tl.constexpr,
    GATE_UNROLL: tl.constexpr,
    UP_UNROLL: tl.constexpr,
    GATE_GAIN: tl.constexpr,
    UP_GAIN: tl.constexpr,
    ALIKE: tl.constexpr,  # one format in float16 for both
    ORDER: tl.constexpr,
    R: tl.constexpr,
    TOKENS: tl.constexpr,
    FEW: tl.constexpr,
) -> None:
    N_CUTS: tl.constexpr = ROWS // R
    begin = tl.load(wave_tiles + wave)
    n_items = (tl.load(wave_tiles + wave + 1) - begin) * N_CUTS
    x = (half, scale, f32)
    hidden = (hidden_half, hidden_part, hidden_f32)
    item = tl.program_id(0)
    while item < n_items:
        tile = tiles + (begin + item // N_CUTS) * 3
        base = tl.multiple_of(tl.load(address + tl.load(tile)).to(tl.pointer_type(tl.uint8)), 16)
        first = item % N_CUTS * R
        start = tl.load(tile + 1)
        count = tl.load(tile + 2)
        if count <= FEW:
            gate_up_tile(
                base, first, x, pairs, start, count, hidden, FEW, K, F, ROWS, COLS, GATE, UP, GATE_MULTIPLY, UP_MULTIPLY,
                GATE_UNIT, UP_UNIT, GATE_UNROLL, UP_UNROLL, GATE_GAIN, UP_GAIN, ALIKE, ORDER, R,
            )  # fmt: skip
        else:
            gate_up_tile(
                base, first, x, pairs, start, count, hidden, TOKENS, K, F, ROWS, COLS, GATE, UP, GATE_MULTIPLY, UP_MULTIPLY,
                GATE_UNIT, UP_UNIT, GATE_UNROLL, UP_UNROLL, GATE_GAIN, UP_GAIN, ALIKE, ORDER, R,
            )  # fmt: skip
        item += tl.num_programs(0)


@triton.jit(do_not_specialize=["wave"])  # type: ignore[untyped-decorator]
def down_kernel(
    half: tl.tensor,  # float16 [pairs, COLS] or None
    scale: tl.tensor,  # float32 [pairs] or None
    f32: tl.tensor,  # float32 [pairs, COLS] or None
    address: tl.tensor,  # int64 [experts]
    pairs: tl.tensor,  # int32 [pairs]
    tiles: tl.tensor,  # int32 [tiles, 3]
    wave_tiles: tl.tensor,  # int32 [waves + 1]
    z: tl.tensor,  # float16 [pairs, ROWS], or float32
    z_scale: tl.tensor,  # float32 [pairs], or None
    wave: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    START: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    UNROLL: tl.constexpr,
    GAIN: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
    TOKENS: tl.constexpr,
    FEW: tl.constexpr,
) -> None:
    N_CUTS: tl.constexpr = ROWS // R
    begin = tl.load(wave_tiles + wave)
    n_items = (tl.load(wave_tiles + wave + 1) - begin) * N_CUTS
    hidden = (half, scale, f32)
    z_forms = (z, z_scale)
    item = tl.program_id(0)
    while item < n_items:
        tile = tiles + (begin + item // N_CUTS) * 3
        base = tl.multiple_of(tl.load(address + tl.load(tile)).to(tl.pointer_type(tl.uint8)), 16) + START
        first = item % N_CUTS * R
        start = tl.load(tile + 1)
        count = tl.load(tile + 2)
        if count <= FEW:
            down_tile(
                base,
                first,
                hidden,
                pairs,
                start,
                count,
                z_forms,
                FEW,
                ROWS,
                COLS,
                MULTIPLY,
                UNIT,
                UNROLL,
                GAIN,
                ORDER,
                R,
            )
        else:
            down_tile(
                base,
                first,
                hidden,
                pairs,
                start,
                count,
                z_forms,
                TOKENS,
                ROWS,
                COLS,
                MULTIPLY,
                UNIT,
                UNROLL,
                GAIN,
                ORDER,
                R,
            )
        item += tl.num_programs(0)


@jit
def combine_rows_kernel(
    z: tl.tensor,  # float16 or float32 [m * K, STRIDE]
    z_scale: tl.tensor,  # float32 [m * K] or None
    weight: tl.tensor,  # float32 [m * K]
    out: tl.tensor,  # float32 [m, D]
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    m = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(out + m * D + i, mask=i < D)
    for j in tl.static_range(K):
        pair = m * K + j
        value = tl.load(z + pair * STRIDE + i, mask=i < D, other=0).to(tl.float32)
        if z_scale is not None:
            value *= tl.load(z_scale + pair)
        total += tl.load(weight + pair) * value
    tl.store(out + m * D + i, total, mask=i < D)


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


@dataclass(frozen=True, eq=False)
class GroupedBuffers:
    """Scratch of a chunk's expert step: rows of `hidden` in the plan's order, rows of `z` by pair.

    Both are float16 with scales, or float32 where `down` is multiplied in float32.
    """

    hidden: torch.Tensor  # [pairs, F]
    hidden_part: torch.Tensor | None  # float32 [pairs, parts]
    hidden_scale: torch.Tensor | None  # float32 [pairs]
    z: torch.Tensor  # [pairs, padded D]
    z_scale: torch.Tensor | None  # float32 [pairs]

    @classmethod
    def empty(
        cls, layout: SpanLayout, max_pairs: int, device: torch.device | str, tuning: ChunkTuning | None = None
    ) -> GroupedBuffers:
        """Allocate for spans of this layout and chunks of up to `max_pairs` = rows * n_picks."""
        import torch

        tuning = tuning or chunk_tuning_for(torch.device(device))
        gate, down = layout.matrix("gate"), layout.matrix("down")
        if not in_halves(down.fmt, down.cols):
            floats = torch.empty(max_pairs, down.cols, device=device)
            return cls(floats, None, None, torch.empty(max_pairs, down.padded_rows, device=device), None)
        hidden_parts = gate.padded_rows // tuning.gate_up.fit(gate.padded_rows)
        return cls(
            torch.empty(max_pairs, down.cols, dtype=torch.float16, device=device),
            torch.empty(max_pairs, hidden_parts, device=device),
            torch.empty(max_pairs, device=device),
            torch.empty(max_pairs, down.padded_rows, dtype=torch.float16, device=device),
            torch.empty(max_pairs, device=device),
        )

    @property
    def is_half(self) -> bool:
        return self.hidden_part is not None


def gate_up_wave(
    x: ChunkRows,
    address: torch.Tensor,
    plan: ChunkPlan,
    wave: int,
    layout: SpanLayout,
    buffers: GroupedBuffers,
    tuning: ChunkTuning | None = None,
) -> None:
    """Compute `hidden` of a wave's pairs; address int64 [n_experts] says where the span of each of its experts lies now."""
    assert x.f32.is_contiguous()
    assert address.numel() >= plan.n_experts
    tuning = tuning or chunk_tuning_for(x.f32.device)
    assert plan.tile == tuning.expert_tokens
    constants = _gate_up_constants(layout, tuning)
    assert x.shape[1] == constants["COLS"]
    assert buffers.hidden.shape[1] == constants["F"]
    gate_up_kernel[(tuning.n_programs,)](
        x.half,
        x.scale,
        x.f32,
        address,
        plan.pairs,
        plan.tiles,
        plan.wave_tiles,
        *((buffers.hidden, buffers.hidden_part, None) if buffers.is_half else (None, None, buffers.hidden)),
        wave,
        K=plan.n_picks,
        **constants,
        **_launch(tuning.gate_up),
    )
    if buffers.hidden_part is not None and buffers.hidden_scale is not None:
        level(buffers.hidden, buffers.hidden_part, buffers.hidden_scale, plan.wave_pairs, wave, 4 * tuning.n_programs)


def down_wave(
    address: torch.Tensor,
    plan: ChunkPlan,
    wave: int,
    layout: SpanLayout,
    buffers: GroupedBuffers,
    tuning: ChunkTuning | None = None,
) -> None:
    """Compute `z` of a wave's pairs from their `hidden`."""
    tuning = tuning or chunk_tuning_for(buffers.z.device)
    assert plan.tile == tuning.expert_tokens
    constants = _down_constants(layout, tuning)
    assert buffers.z.shape[1] == constants["ROWS"]
    hidden = (buffers.hidden, buffers.hidden_scale, None) if buffers.is_half else (None, None, buffers.hidden)
    down_kernel[(tuning.n_programs,)](
        *hidden,
        address,
        plan.pairs,
        plan.tiles,
        plan.wave_tiles,
        buffers.z,
        buffers.z_scale,
        wave,
        **constants,
        **_launch(tuning.down),
    )


def combine_rows(buffers: GroupedBuffers, weights: torch.Tensor, out: torch.Tensor) -> None:
    """Add each row's picks, weighted (float32 [m, k]) and in their order, to out float32 [m, D], once all waves are done."""
    m, width = out.shape
    stride = buffers.z.shape[1]
    assert weights.shape[0] == m
    assert weights.is_contiguous()
    assert out.is_contiguous()
    combine_rows_kernel[(m, cdiv(width, COMBINE_BLOCK))](
        buffers.z,
        buffers.z_scale,
        weights,
        out,
        D=width,
        STRIDE=stride,
        K=weights.shape[1],
        BLOCK=COMBINE_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )


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
    tile = tuning.dense if in_halves(layout.fmt, cols) else tuning.float32
    rows = tile.fit(layout.padded_rows)
    dense_kernel[(layout.padded_rows // rows, cdiv(m, tile.tokens))](
        x.half,
        x.scale,
        x.f32,
        weight.data,
        out,
        m,
        ROWS=layout.padded_rows,
        COLS=cols,
        ORDER=tuning.order,
        R=rows,
        TOKENS=tile.tokens,
        FEW=tile.few,
        ADD=add,
        **_matrix_constants(layout, tile),
        **_launch(tile),
    )


def _matrix_constants(matrix: MatrixLayout, tile: ChunkTile) -> dict[str, Any]:
    fmt = matrix.fmt
    if not in_halves(fmt, matrix.cols):
        return {"MULTIPLY": fmt.load, "UNIT": 0, "UNROLL": 1, "GAIN": 0}
    unroll = max(1, tile.depth // fmt.tile_unit)
    return {"MULTIPLY": fmt.tile, "UNIT": fmt.tile_unit, "UNROLL": unroll, "GAIN": GAIN if fmt.integer else 1}


def _gate_up_constants(layout: SpanLayout, tuning: ChunkTuning) -> dict[str, Any]:
    gate, up = layout.matrix("gate"), layout.matrix("up")
    assert (gate.rows, gate.cols) == (up.rows, up.cols)
    assert gate.rows == layout.matrix("down").cols
    tile = tuning.gate_up
    of_gate = {f"GATE_{name}": value for name, value in _matrix_constants(gate, tile).items()}
    of_up = {f"UP_{name}": value for name, value in _matrix_constants(up, tile).items()}
    return {
        "F": gate.rows,
        "ROWS": gate.padded_rows,
        "COLS": gate.cols,
        "GATE": layout.start("gate"),
        "UP": layout.start("up"),
        **of_gate,
        **of_up,
        "ALIKE": gate.fmt is up.fmt and in_halves(gate.fmt, gate.cols),
        "ORDER": tuning.order,
        "R": tile.fit(gate.padded_rows),
        "TOKENS": tile.tokens,
        "FEW": tile.few,
    }


def _down_constants(layout: SpanLayout, tuning: ChunkTuning) -> dict[str, Any]:
    matrix = layout.matrix("down")
    return {
        "ROWS": matrix.padded_rows,
        "COLS": matrix.cols,
        "START": layout.start("down"),
        **_matrix_constants(matrix, tuning.down),
        "ORDER": tuning.order,
        "R": tuning.down.fit(matrix.padded_rows),
        "TOKENS": tuning.down.tokens,
        "FEW": tuning.down.few,
    }


def _launch(tile: ChunkTile) -> dict[str, Any]:
    return {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False}


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: every format, formats alike and not, float32."""
    tiles: dict[str, Any] = CHUNK_TILES["hopper"]
    tuning = ChunkTuning(order=ORDER_WARPGROUP, n_programs=132, **tiles)
    combined = {"D": 2880, "STRIDE": 2880, "K": 4, "BLOCK": COMBINE_BLOCK}
    types = {"z": "*fp16", "z_scale": "*fp32", "weight": "*fp32", "out": "*fp32"}
    cases = [CompileCase("combine_rows", combine_rows_kernel, types, combined)]
    for roles in (("Q4_K", "Q4_K", "Q6_K"), ("Q5_K", "Q4_K", "Q5_0"), ("F16", "F16", "F32")):
        cases += _expert_cases(roles, tuning)
    return cases + [_dense_case(fmt, tuning) for fmt in FORMATS.values()]


INPUT_TYPES = {"half": "*fp16", "scale": "*fp32", "f32": "*fp32"}


def _expert_cases(roles: tuple[str, ...], tuning: ChunkTuning) -> list[CompileCase]:
    by_name = {fmt.name: fmt for fmt in FORMATS.values()}
    shapes = ((768, 2048), (768, 2048), (2048, 768))
    matrices = [MatrixLayout(by_name[name], *shape) for name, shape in zip(roles, shapes, strict=True)]
    layout = SpanLayout(("gate", "up", "down"), tuple(matrices))
    plan = {"address": "*i64", "wave": "i32"} | dict.fromkeys(("pairs", "tiles", "wave_tiles"), "*i32")
    half = in_halves(matrices[2].fmt, matrices[2].cols)

    def one_of(prefix: str, forms: dict[str, str]) -> tuple[dict[str, str], dict[str, None]]:
        kept = [f for f in forms if (f != "f32") == half]
        return {f"{prefix}{f}": forms[f] for f in kept}, {f"{prefix}{f}": None for f in forms if f not in kept}

    hidden, no_hidden = one_of("hidden_", {"half": "*fp16", "part": "*fp32", "f32": "*fp32"})
    z, no_z = ({"z": "*fp16", "z_scale": "*fp32"}, {}) if half else ({"z": "*fp32"}, {"z_scale": None})
    x, no_x = one_of("", INPUT_TYPES)
    name = " ".join(roles)
    gate_up = {**_gate_up_constants(layout, tuning), **no_hidden, "K": 8}
    down = {**_down_constants(layout, tuning), **no_z, **no_x}
    return [
        _case(f"gate_up chunk {name}", gate_up_kernel, plan | INPUT_TYPES | hidden, gate_up, tuning.gate_up),
        _case(f"down chunk {name}", down_kernel, plan | x | z, down, tuning.down),
    ]


def _dense_case(fmt: QuantFormat, tuning: ChunkTuning) -> CompileCase:
    layout = MatrixLayout(fmt, 4096, 2048)
    tile = tuning.dense if in_halves(fmt, layout.cols) else tuning.float32
    constants = {
        "ROWS": layout.padded_rows,
        "COLS": layout.cols,
        "ORDER": tuning.order,
        "R": tile.fit(layout.padded_rows),
        "TOKENS": tile.tokens,
        "FEW": tile.few,
        "ADD": False,
        **_matrix_constants(layout, tile),
    }
    types = INPUT_TYPES | {"base": "*u8", "out": "*fp32", "m": "i32"}
    return _case(f"dense chunk {fmt.name}", dense_kernel, types, constants, tile)


def _case(name: str, kernel: Any, types: dict[str, str], constants: dict[str, Any], tile: ChunkTile) -> CompileCase:
    return CompileCase(name, kernel, types, constants, tile.warps, num_stages=tile.stages)
