"""Attention of a chunk of one sequence over its KV cache on tensor cores, the chunk's own keys included.

y[i, h] = sum_t softmax_t(scale q[i, h] . k[h / group, t]) v[h / group, t],   t = 0..start + i

Queries, keys, values and exponentials are float16, sums float32. Key tiles start at multiples of their size from position 0, and a tile
that a row does not see leaves it as it is, so that a row's bits depend neither on the other rows of its tile nor on the chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import cdiv, next_power_of_2
from hotset.kernels.kv_cache import load_cells
from hotset.kernels.rows import ROW_TABLES
from hotset.kernels.tuning import CHUNK_TILES, AttentionTile, ChunkTuning, chunk_tuning_for
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    from hotset.kernels.kv_cache import KVCache
    from hotset.kernels.rows import Rows

LOG2_E = 1.4426950408889634


@jit
def attend_tile(
    tile: tl.tensor,
    state: tl.tensor,  # (out [QUERIES, DIM_PAD], total [QUERIES], top [QUERIES])
    query: tl.tensor,  # float16 [QUERIES, DIM_PAD]
    cache: tl.tensor,  # (keys, their scales, values, theirs)
    head_at: tl.tensor,
    position: tl.tensor,  # [QUERIES]
    n_keys: tl.tensor,
    KEYS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    out, total, top = state
    t = tile * KEYS + tl.arange(0, KEYS)
    k_cache, k_scale, v_cache, v_scale = cache
    key = load_cells(k_cache, k_scale, head_at, t, n_keys, HEAD_DIM, DIM_PAD, MASKED)
    value = load_cells(v_cache, v_scale, head_at, t, n_keys, HEAD_DIM, DIM_PAD, MASKED)
    score = tl.dot(query, tl.trans(key))
    if MASKED:
        score = tl.where(t[None, :] <= position[:, None], score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    fade = tl.exp2(top - higher)
    p = tl.exp2(score - higher[:, None])
    total = total * fade + tl.sum(p, 1)
    out = tl.dot(p.to(tl.float16), value, out * fade[:, None])
    return out, total, higher


# One program per head and tile of queries; the last tiles, which see the most keys, start first. What varies is not specialised:
# variants would compile while somebody waits.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["m", "n_ctx"], do_not_specialize_on_alignment=ROW_TABLES
)
def chunk_attention_kernel(
    q: tl.tensor,  # float32 [m, q_stride]
    k_cache: tl.tensor,  # float16 [n_seqs, N_KV, n_ctx, HEAD_DIM], or int8
    k_scale: tl.tensor,  # float16 [n_seqs, N_KV, n_ctx, HEAD_DIM / 32], or None
    v_cache: tl.tensor,
    v_scale: tl.tensor,
    positions: tl.tensor,  # int32 [m], successive
    seqs: tl.tensor,  # int32 [m], all the same
    y: tl.tensor,  # float32 [m, y_stride]
    m: tl.tensor,
    q_stride: tl.tensor,
    y_stride: tl.tensor,
    n_ctx: tl.tensor,
    scale: tl.tensor,  # times log2 e
    N_KV: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PIPELINED: tl.constexpr,
) -> None:
    head = tl.program_id(0)
    begin = (tl.num_programs(1) - 1 - tl.program_id(1)) * QUERIES
    row = begin + tl.arange(0, QUERIES)
    d = tl.arange(0, DIM_PAD)
    start = tl.load(positions)
    is_cell = (row < m)[:, None] & (d < HEAD_DIM)[None, :]
    at = row.to(tl.int64)[:, None]
    query = tl.load(q + at * q_stride + head * HEAD_DIM + d[None, :], mask=is_cell, other=0)
    query = (query * scale).to(tl.float16)
    head_at = (tl.load(seqs).to(tl.int64) * N_KV + head // GROUP) * n_ctx * HEAD_DIM
    cache = (k_cache, k_scale, v_cache, v_scale)

    position = start + tl.minimum(row, m - 1)
    n_keys = start + tl.minimum(begin + QUERIES, m)
    n_whole = (start + begin + 1) // KEYS  # tiles that every row sees
    n_tiles = tl.cdiv(n_keys, KEYS)
    out = tl.zeros([QUERIES, DIM_PAD], tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    state = (out, total, top)
    if PIPELINED:
        for tile in tl.range(0, n_whole):
            state = attend_tile(tile, state, query, cache, head_at, position, n_keys, KEYS, HEAD_DIM, DIM_PAD, False)
        for tile in tl.range(n_whole, n_tiles):
            state = attend_tile(tile, state, query, cache, head_at, position, n_keys, KEYS, HEAD_DIM, DIM_PAD, True)
    else:
        tile = n_tiles * 0
        while tile < n_whole:
            state = attend_tile(tile, state, query, cache, head_at, position, n_keys, KEYS, HEAD_DIM, DIM_PAD, False)
            tile += 1
        while tile < n_tiles:
            state = attend_tile(tile, state, query, cache, head_at, position, n_keys, KEYS, HEAD_DIM, DIM_PAD, True)
            tile += 1
    out, total, top = state
    tl.store(y + at * y_stride + head * HEAD_DIM + d[None, :], out / total[:, None], mask=is_cell)


def chunk_attention(
    q: torch.Tensor, cache: KVCache, rows: Rows, scale: float, out: torch.Tensor, tuning: ChunkTuning | None = None
) -> None:
    """Write out [m, n_heads * head_dim] for q of the same shape, both float32 with contiguous rows.

    `rows` are successive positions of one sequence, whose keys and values up to the last of them are stored already, not as float32.
    """
    head_dim, n_kv = cache.head_dim, cache.n_kv
    m = q.shape[0]
    assert q.shape == out.shape
    assert q.shape[1] % (head_dim * n_kv) == 0
    assert q.stride(1) == out.stride(1) == 1
    assert len(rows) == m
    assert cache.is_half
    cache.check()
    n_heads = q.shape[1] // head_dim
    tile = (tuning or chunk_tuning_for(q.device)).attention
    chunk_attention_kernel[(n_heads, cdiv(m, tile.queries))](
        q,
        *cache.tensors,
        rows.positions,
        rows.seqs,
        out,
        m,
        q.stride(0),
        out.stride(0),
        cache.n_ctx,
        scale * LOG2_E,
        **_constants(n_kv, n_heads // n_kv, head_dim, tile),
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=False,
    )


def _constants(n_kv: int, group: int, head_dim: int, tile: AttentionTile) -> dict[str, object]:
    return {
        "N_KV": n_kv,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "DIM_PAD": next_power_of_2(head_dim),
        "QUERIES": tile.queries,
        "KEYS": tile.keys,
        "PIPELINED": tile.pipelined,
    }


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"q": "*fp32", "positions": "*i32", "seqs": "*i32", "y": "*fp32"}
    types |= dict.fromkeys(("m", "q_stride", "y_stride", "n_ctx"), "i32") | {"scale": "fp32"}
    half = types | dict.fromkeys(("k_cache", "v_cache"), "*fp16")
    q8 = types | dict.fromkeys(("k_cache", "v_cache"), "*i8") | dict.fromkeys(("k_scale", "v_scale"), "*fp16")
    cases = []
    for device in ("other", "hopper"):
        tile = CHUNK_TILES[device]["attention"]
        for head_dim, given in ((128, half), (80, half), (64, half), (128, q8), (96, q8)):
            constants = _constants(4, 8, head_dim, tile)
            if given is half:
                constants |= dict.fromkeys(("k_scale", "v_scale"))
            name = f"chunk attention {device} {head_dim} {given['k_cache'][1:]}"
            divisible = ("q_stride", "y_stride", "n_ctx")
            case = CompileCase(
                name, chunk_attention_kernel, given, constants, tile.warps, divisible=divisible, num_stages=tile.stages
            )
            cases.append(case)
    return cases
