"""GGUF blocks -> planes, at memory speed; the plain twin is MatrixLayout.from_blocks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hotset.host.compile import compiled
from hotset.host.memory import peek8, peek16, peek32, poke8, poke16, poke32
from hotset.quant.layout import GROUP, Bytes, MatrixLayout, QuantFormat

_KINDS = {
    ("copy", 4): 0,
    ("copy", 2): 1,
    ("copy", 1): 2,
    ("six-bit scale", 1): 3,
    ("six-bit minimum", 1): 4,
    ("spread bits", 4): 5,
    ("IQ4_XS scale", 1): 6,
    ("Q3_K scale", 1): 7,
}


@cache
def _moves(fmt: QuantFormat) -> NDArray[np.int64]:
    """One row per plane: kind, offset in the block, units, bytes per block."""
    return np.array(
        [(_KINDS[p.move, p.unit_bytes], p.source, p.count, p.bytes_per_block) for p in fmt.planes], np.int64
    )


@compiled(inline=True)
def _six_bits(source: int, index: int, is_minimum: bool) -> int:
    # ggml's get_scale_min_k4: bytes 0-3 scales, 4-7 minima, 8-11 the low nibbles of numbers 4-7, whose upper bits sit on top of the former.
    shift = 4 if is_minimum else 0
    lead = 4 if is_minimum else 0
    if index < 4:
        return peek8(source + lead + index) & 63
    low = (peek8(source + 4 + index) >> shift) & 15
    return low | ((peek8(source + lead + index - 4) >> 6) << 4)


@compiled(inline=True)
def _spread(bits: int) -> int:
    out = 0
    for k in range(32):
        out |= ((bits >> k) & 1) << (8 * (k % 4) + k // 4)
    return out


@compiled(inline=True)
def _iq4_xs_scale(source: int, index: int) -> Any:
    low = (peek8(source + 2 + index // 2) >> (4 * (index % 2))) & 15
    return np.int64(low | (((peek16(source) >> (2 * index)) & 3) << 4)) - 32


@compiled(inline=True)
def _q3_k_scale(source: int, index: int) -> Any:
    low = (peek8(source + index % 8) >> (4 * (index // 8))) & 15
    return np.int64(low | (((peek8(source + 8 + index % 4) >> (2 * (index // 4))) & 3) << 4)) - 32


@compiled(inline=True)
def _move_row(kind: int, source: int, target: int, count: int) -> None:
    """One row's units of one plane of one block; `target` is the row's place in unit 0."""
    for u in range(count):
        if kind == 0:
            poke32(target + u * 4 * GROUP, peek32(source + 4 * u))
        elif kind == 1:
            poke16(target + u * 2 * GROUP, peek16(source + 2 * u))
        elif kind == 2:
            poke8(target + u * GROUP, peek8(source + u))
        elif kind == 5:
            poke32(target + u * 4 * GROUP, np.uint32(_spread(peek32(source))))
        elif kind == 6:
            poke8(target + u * GROUP, np.uint8(_iq4_xs_scale(source, u)))
        elif kind == 7:
            poke8(target + u * GROUP, np.uint8(_q3_k_scale(source, u)))
        else:
            poke8(target + u * GROUP, np.uint8(_six_bits(source, u, kind == 4)))


@compiled(inline=True)
def _clear_row(target: int, unit_bytes: int, count: int) -> None:
    for u in range(count):
        for i in range(unit_bytes):
            poke8(target + u * unit_bytes * GROUP + i, np.uint8(0))


def _move(
    source: int, n_items: int, rows: int, n_blocks: int, block_bytes: int, table: Any, moves: Any, target: int, target_stride: int
) -> None:  # fmt: skip
    n_groups = (rows + GROUP - 1) // GROUP
    for task in numba.prange(n_items * n_groups):
        item = task // n_groups
        group = task % n_groups
        first = source + (item * rows + group * GROUP) * n_blocks * block_bytes
        plane = target + item * target_stride
        if group == 0:
            for i in range(table.size):
                poke8(plane + i, table[i])
        plane += table.size
        for p in range(moves.shape[0]):
            kind, offset, count, plane_bytes = moves[p]
            unit_bytes = plane_bytes // count
            for b in range(n_blocks):
                place = plane + (group * n_blocks + b) * plane_bytes * GROUP
                for r in range(GROUP):
                    if group * GROUP + r < rows:
                        at = first + (r * n_blocks + b) * block_bytes + offset
                        _move_row(kind, at, place + r * unit_bytes, count)
                    else:
                        _clear_row(place + r * unit_bytes, unit_bytes, count)
            plane += n_groups * n_blocks * plane_bytes * GROUP


_move_alone = compiled()(_move)
_move_spread = compiled(parallel=True)(_move)


def rearrange(
    layout: MatrixLayout, blocks: Bytes, target: int, *, n_items: int = 1, target_stride: int = 0, spread: bool = False
) -> None:
    """`n_items` matrices of GGUF bytes, one after the other in `blocks` (uint8, contiguous), -> planes at address `target` + i `target_stride`.

    On the calling thread, of which there may be several; `spread` takes all threads, and may be called by one thread at a time.
    """
    if blocks.size != n_items * layout.rows * layout.row_bytes or not blocks.flags.c_contiguous:
        raise ValueError(
            f"{blocks.size} bytes for {n_items} matrices of {layout.rows} rows of {layout.row_bytes} bytes"
        )
    fmt = layout.fmt
    table = np.empty(0, np.uint8) if fmt.table is None else fmt.table
    move = _move_spread if spread else _move_alone
    move(
        blocks.ctypes.data, n_items, layout.rows, layout.n_blocks, fmt.block_bytes, table, _moves(fmt), target, target_stride
    )  # fmt: skip


def to_planes(layout: MatrixLayout, blocks: Bytes) -> Bytes:
    """GGUF bytes uint8 [rows * row_bytes] -> planes uint8 [n_bytes], aligned to 64 bytes."""
    data = aligned_bytes(layout.n_bytes)
    rearrange(layout, blocks, data.ctypes.data, spread=True)
    return data


def aligned_bytes(n: int, alignment: int = 64) -> Bytes:
    """Uninitialised uint8 [n] that begins on a cache line."""
    raw = np.empty(n + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + n]
