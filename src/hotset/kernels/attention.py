"""Attention of a few new tokens over their sequences' KV cache, cut into splits of fixed length (flash-decode).

y[row, h] = sum_t softmax_t(scale q[row, h] . k[seq, h / group, t]) v[seq, h / group, t], t = first..position[row]

first is 0, or what a window of the last positions or a chunk of neighbours leaves; a softcap c makes a score c tanh(score / c); sinks join
the sum that probabilities are divided by.

Splits and key tiles start at multiples of their length from position 0 and are combined in order, so that a row's bits depend on
its own sequence alone: not on other rows, the size of the KV cache or the number of splits launched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import cdiv, next_power_of_2
from hotset.kernels.kv_cache import floats, load_cells
from hotset.kernels.rows import ROW_TABLES
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    from hotset.kernels.kv_cache import KVCache
    from hotset.kernels.rows import Rows

# On an H200 a row of 32 heads over 4 KV heads of 128 takes 3.4 us at 256 positions, 10.6 at 16,000 (8.2 from memory's speed);
# splits of 128 take 4.2 and 11.0. The combining kernel, 32 splits by 32 values, adds 2.1 and 5.0.
SPLIT = 64
SPLIT_BLOCK = 32
DIM_PART = 32


@jit
def first_seen(position: tl.tensor, WINDOW: tl.constexpr, CHUNK: tl.constexpr) -> tl.tensor:
    first = position * 0
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0)
    if CHUNK > 0:
        first = position // CHUNK * CHUNK
    return first


@jit
def halves(x: tl.tensor) -> tl.tensor:
    """Split float32 |x| < 65504 into a float16 and the float16 of 2048 times the rest: 22 bits of it."""
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * 2048.0).to(tl.float16)


# A float32 times a float16 matrix on tensor cores, summed in float32: products of halves are exact, so it is as close as a float32
# product (relative error 4e-7 in all) and three to four times as fast as one.
@jit
def half_dot(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    high, low = halves(x)
    return tl.dot(high, y) + tl.dot(low, y) * (1.0 / 2048)


# One program per row, KV head and split: the query heads of a group share the keys that it reads.
@jit(do_not_specialize=["n_ctx"], do_not_specialize_on_alignment=ROW_TABLES)
def split_kernel(
    q: tl.tensor,  # float32 [m, q_stride]
    k_cache: tl.tensor,  # [n_seqs, N_KV, n_ctx, HEAD_DIM]
    k_scale: tl.tensor,  # float16 [n_seqs, N_KV, n_ctx, HEAD_DIM / 32], or None
    v_cache: tl.tensor,  # [n_seqs, N_KV, n_ctx, VALUE_DIM]
    v_scale: tl.tensor,
    positions: tl.tensor,  # int32 [m]
    seqs: tl.tensor,  # int32 [m]
    row_mask: tl.tensor,  # int32 [m]
    peak: tl.tensor,  # float32 [m, n_heads, n_splits], largest score
    mass: tl.tensor,  # float32 [m, n_heads, n_splits], sum of exp(score - peak)
    part: tl.tensor,  # float32 [m, n_heads, n_splits, VALUE_DIM], sum of exp(score - peak) v
    q_stride: tl.tensor,
    n_ctx: tl.tensor,
    n_splits: tl.tensor,
    scale: tl.tensor,
    N_KV: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    HALF: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(positions + row) + 1
    first = first_seen(length - 1, WINDOW, CHUNK)
    start = split * SPLIT
    if (tl.load(row_mask + row) == 0) | (start >= length) | (start + SPLIT <= first):
        return
    g = tl.arange(0, GROUP_PAD)
    d = tl.arange(0, DIM_PAD)
    dv = tl.arange(0, VALUE_PAD)
    is_head = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    head = kv * GROUP + g
    query = tl.load(q + row * q_stride + head[:, None] * HEAD_DIM + d[None, :], mask=is_head, other=0.0)
    query *= scale  # [GROUP_PAD, DIM_PAD]
    at = (tl.load(seqs + row).to(tl.int64) * N_KV + kv) * n_ctx

    top = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    out = tl.zeros([GROUP_PAD, VALUE_PAD], tl.float32)
    for tile in tl.static_range(0, SPLIT, TILE):
        t = start + tile + tl.arange(0, TILE)
        inside = (t >= first) & (t < length)
        seen = t
        if WINDOW > 0 or CHUNK > 0:
            # What lies before the window may be anything: it is not loaded, as if it lay beyond the end.
            seen = tl.where(inside, t, length)
        key = load_cells(k_cache, k_scale, at * HEAD_DIM, seen, length, HEAD_DIM, DIM_PAD, True)  # [TILE, DIM_PAD]
        value = load_cells(v_cache, v_scale, at * VALUE_DIM, seen, length, VALUE_DIM, VALUE_PAD, True)
        score = half_dot(query, tl.trans(key)) if HALF else tl.sum(query[:, None, :] * key[None, :, :], 2)
        if SOFTCAP > 0:
            score = SOFTCAP * (1.0 - 2.0 / (tl.exp(score * (2.0 / SOFTCAP)) + 1.0))
        score = tl.where(inside[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        if WINDOW > 0 or CHUNK > 0:
            # The first tiles of a split may lie before the window: nothing is the largest so far.
            higher = tl.maximum(higher, -3.0e38)
        fade = tl.exp(top - higher)
        p = tl.exp(score - higher[:, None])  # [GROUP_PAD, TILE]
        total = total * fade + tl.sum(p, 1)
        out *= fade[:, None]
        if HALF:
            out += half_dot(p, value)
        else:
            out += tl.sum(p[:, :, None] * value[None, :, :], 1)
        top = higher

    cell = (row * N_KV * GROUP + head) * n_splits + split
    tl.store(peak + cell, top, mask=g < GROUP)
    tl.store(mass + cell, total, mask=g < GROUP)
    tl.store(part + cell[:, None] * VALUE_DIM + dv[None, :], out, mask=(g < GROUP)[:, None] & (dv < VALUE_DIM)[None, :])


# One program per row, query head and part of the head's values.
@jit
def combine_kernel(
    peak: tl.tensor,
    mass: tl.tensor,
    part: tl.tensor,
    positions: tl.tensor,
    row_mask: tl.tensor,
    sinks: tl.tensor,  # float32 [N_HEADS], or None
    y: tl.tensor,  # float32 [m, y_stride]
    y_stride: tl.tensor,
    n_splits: tl.tensor,
    N_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PART: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    head = tl.program_id(1)
    if tl.load(row_mask + row) == 0:
        return
    position = tl.load(positions + row)
    n_used = position // SPLIT + 1
    begin = first_seen(position, WINDOW, CHUNK) // SPLIT
    d = tl.program_id(2) * DIM_PART + tl.arange(0, DIM_PART)
    at = (row * N_HEADS + head) * n_splits
    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    block = begin
    while block < n_used:
        s = block + tl.arange(0, BLOCK)
        peaks = tl.maximum(peaks, tl.load(peak + at + s, mask=s < n_used, other=float("-inf")))
        block += BLOCK
    top = tl.max(peaks, 0)
    total = 0.0
    if sinks is not None:
        sink = tl.load(sinks + head)
        top = tl.maximum(top, sink)
        total += tl.exp(sink - top)
    out = tl.zeros([DIM_PART], tl.float32)
    block = begin
    while block < n_used:
        s = block + tl.arange(0, BLOCK)
        share = tl.exp(tl.load(peak + at + s, mask=s < n_used, other=float("-inf")) - top)  # [BLOCK]
        total += tl.sum(share * tl.load(mass + at + s, mask=s < n_used, other=0.0), 0)
        is_cell = (s < n_used)[:, None] & (d < HEAD_DIM)[None, :]
        rows = tl.load(part + (at + s)[:, None] * HEAD_DIM + d[None, :], mask=is_cell, other=0.0)
        out += tl.sum(share[:, None] * rows, 0)
        block += BLOCK
    tl.store(y + row * y_stride + head * HEAD_DIM + d, out / total, mask=d < HEAD_DIM)


@dataclass(frozen=True)
class Span:
    """Which positions a row sees, and what becomes of its scores; 0 is no limit, None no sinks (float32 [n_heads])."""

    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None

    def first(self, position: int) -> int:
        """The first position that a row at `position` sees."""
        if self.window:
            return max(0, position - self.window + 1)
        return position // self.chunk * self.chunk if self.chunk else 0


ALL = Span()


@dataclass(frozen=True)
class SplitBuffers:
    """What the splits hand to the combining kernel; all layers of a shape use the same."""

    peak: torch.Tensor
    mass: torch.Tensor
    part: torch.Tensor

    @classmethod
    def empty(cls, n_rows: int, n_heads: int, value_dim: int, n_ctx: int, device: torch.device | str) -> SplitBuffers:
        shape = n_rows, n_heads, cdiv(n_ctx, SPLIT)
        return cls(
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(*shape, value_dim, dtype=torch.float32, device=device),
        )


def attention(
    q: torch.Tensor,
    cache: KVCache,
    rows: Rows,
    scale: float,
    buffers: SplitBuffers,
    out: torch.Tensor,
    span: Span = ALL,
) -> None:
    """Write out [m, n_heads * value_dim] for q [m, n_heads * head_dim], both float32 with contiguous rows.

    Each row sees positions up to its own of its sequence, stored already, as far back as `span` says. A row of mask 0 is left as it is.
    """
    head_dim, n_kv = cache.head_dim, cache.n_kv
    n_heads, n_splits = buffers.peak.shape[1:]
    assert q.shape == (len(q), n_heads * head_dim)
    assert out.shape == (len(q), n_heads * cache.value_dim)
    assert q.stride(1) == out.stride(1) == 1
    assert len(q) <= len(buffers.peak)
    assert buffers.part.shape[3] == cache.value_dim
    assert n_splits * SPLIT >= cache.n_ctx
    assert n_heads % n_kv == 0
    cache.check()
    group = n_heads // n_kv
    half = cache.is_half
    split_kernel[(len(q), n_kv, n_splits)](
        q,
        *cache.tensors,
        rows.positions,
        rows.seqs,
        rows.row_mask,
        buffers.peak,
        buffers.mass,
        buffers.part,
        q.stride(0),
        cache.n_ctx,
        n_splits,
        scale,
        N_KV=n_kv,
        GROUP=group,
        GROUP_PAD=next_power_of_2(group),
        HEAD_DIM=head_dim,
        DIM_PAD=next_power_of_2(head_dim),
        VALUE_DIM=cache.value_dim,
        VALUE_PAD=next_power_of_2(cache.value_dim),
        SPLIT=SPLIT,
        TILE=tile_length(head_dim, half=half),
        HALF=half,
        WINDOW=span.window,
        CHUNK=span.chunk,
        SOFTCAP=span.softcap,
        num_warps=4,
    )
    combine_splits(buffers, rows, out, span)


def combine_splits(buffers: SplitBuffers, rows: Rows, out: torch.Tensor, span: Span = ALL) -> None:
    """Join what the splits found into out float32 [m, n_heads * value_dim]."""
    n_heads, n_splits, value_dim = buffers.part.shape[1:]
    combine_kernel[(len(out), n_heads, cdiv(value_dim, DIM_PART))](
        buffers.peak,
        buffers.mass,
        buffers.part,
        rows.positions,
        rows.row_mask,
        span.sinks,
        out,
        out.stride(0),
        n_splits,
        N_HEADS=n_heads,
        HEAD_DIM=value_dim,
        DIM_PART=DIM_PART,
        SPLIT=SPLIT,
        BLOCK=SPLIT_BLOCK,
        WINDOW=span.window,
        CHUNK=span.chunk,
        num_warps=1,
    )


def tile_length(head_dim: int, *, half: bool) -> int:
    """Give the number of keys that a program holds at once: what fits the registers of the smallest cards."""
    return max(16, min(SPLIT, 8192 // next_power_of_2(head_dim))) if half else 16


def reference(q: torch.Tensor, cache: KVCache, rows: Rows, scale: float, span: Span = ALL) -> torch.Tensor:
    """Compute the same in plain PyTorch, in float64: [m, n_heads * value_dim]."""
    out = []
    for r, query in enumerate(q):
        seq, length = int(rows.seqs[r]), int(rows.positions[r]) + 1
        first = span.first(length - 1)
        key, value = floats(cache.k, cache.k_scale), floats(cache.v, cache.v_scale)
        key, value = (cells[seq, :, first:length].double() for cells in (key, value))
        grouped = query.double().view(cache.n_kv, -1, cache.head_dim)
        scores = scale * grouped @ key.transpose(1, 2)
        if span.softcap:
            scores = span.softcap * torch.tanh(scores / span.softcap)
        if span.sinks is not None:
            sinks = span.sinks.double().view(cache.n_kv, -1, 1)
            scores = torch.cat([scores, sinks], -1)
            value = torch.cat([value, torch.zeros_like(value[:, :1])], 1)
        out.append((torch.softmax(scores, -1) @ value).flatten())
    return torch.stack(out)


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    rows = dict.fromkeys(("positions", "row_mask"), "*i32")
    splits = dict.fromkeys(("peak", "mass", "part"), "*fp32")
    combine = splits | rows | {"y": "*fp32", "y_stride": "i32", "n_splits": "i32"}
    constants = {"N_HEADS": 32, "HEAD_DIM": 128, "DIM_PART": DIM_PART, "SPLIT": SPLIT, "BLOCK": SPLIT_BLOCK}
    constants |= {"WINDOW": 0, "CHUNK": 0}
    with_sinks = combine | {"sinks": "*fp32"}
    cases = [
        CompileCase("attention combine", combine_kernel, combine, constants | {"sinks": None}, 1, fp_fusion=True),
        CompileCase(
            "attention combine sinks", combine_kernel, with_sinks, constants | {"WINDOW": 128}, 1, fp_fusion=True
        ),
    ]
    for dtype, group, head_dim in (("fp16", 8, 128), ("fp32", 1, 80), ("fp16", 5, 192), ("i8", 8, 128), ("i8", 5, 96)):
        caches = dict.fromkeys(("k_cache", "v_cache"), f"*{dtype}")
        sizes = dict.fromkeys(("q_stride", "n_ctx", "n_splits"), "i32")
        types = {"q": "*fp32", "seqs": "*i32", "scale": "fp32"} | rows | splits | caches | sizes
        scales = dict.fromkeys(("k_scale", "v_scale"))
        if dtype == "i8":
            types |= dict.fromkeys(scales, "*fp16")
        shape = {
            "N_KV": 4,
            "GROUP": group,
            "GROUP_PAD": next_power_of_2(group),
            "HEAD_DIM": head_dim,
            "DIM_PAD": next_power_of_2(head_dim),
            "VALUE_DIM": head_dim,
            "VALUE_PAD": next_power_of_2(head_dim),
            "WINDOW": 128 if head_dim == 192 else 0,
            "CHUNK": 0,
            "SOFTCAP": 30.0 if head_dim == 80 else 0.0,
            "SPLIT": SPLIT,
            "TILE": tile_length(head_dim, half=dtype != "fp32"),
            "HALF": dtype != "fp32",
            **({} if dtype == "i8" else scales),
        }
        cases.append(CompileCase(f"attention {dtype} {head_dim}", split_kernel, types, shape, 4, fp_fusion=True))
    return cases
