"""The device code of kernels/grouped.py, which has the formulas."""

from __future__ import annotations

import triton

from hotset.kernels.chunk_product import chunk_product, true_size, two_products
from hotset.kernels.half import COARSE, power_of_two
from hotset.quant.tiles import in_order
from hotset.quant.triton import jit, tl

Z_SCALE = tl.constexpr(4096.0)
COARSE_BITS = tl.constexpr(COARSE)


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
# `wave` counts up and `address` may be a row of a table: specialising would compile variants.
@triton.jit(do_not_specialize=["wave"], do_not_specialize_on_alignment=["address"])  # type: ignore[untyped-decorator]
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


@triton.jit(do_not_specialize=["wave"], do_not_specialize_on_alignment=["address"])  # type: ignore[untyped-decorator]
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
