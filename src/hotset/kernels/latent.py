"""Attention over latents (DeepSeek-V2): what is stored per position is one normed latent and one rotated key, shared by all heads.

score[row, h, t] = scale (q_latent[row, h] . latent[t] + q_rotated[row, h] . key[t]); y[row, h] = sum_t softmax_t(score) latent[t]

q_latent is the first part of a head's q after its matrix k_up. Splits and their sums are those of attention.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from triton import cdiv, next_power_of_2

from hotset.kernels.aot import CompileCase
from hotset.kernels.attention import SPLIT, SplitBuffers, combine_splits, half_dot
from hotset.kernels.kv_cache import BLOCK, floats, store_cells
from hotset.kernels.rows import ROW_TABLES
from hotset.kernels.tuning import has_tensor_cores
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    from hotset.kernels.rows import Rows

# Heads of one program: tensor cores want sixteen rows; in float32 one head's latents fill the registers.
HEADS = 16


@jit
def turned(
    source: tl.tensor, cos: tl.tensor, sin: tl.tensor, ROPE: tl.constexpr, ROPE_PAD: tl.constexpr, NEOX: tl.constexpr
) -> tl.tensor:
    """Rotate ROPE values, all of them, into their own places: float32 [ROPE_PAD]."""
    i = tl.arange(0, ROPE_PAD)
    ok = i < ROPE
    if NEOX:
        pair = i % (ROPE // 2)
        is_first = i < ROPE // 2
        other = tl.where(is_first, i + ROPE // 2, i - ROPE // 2)
    else:
        pair = i // 2
        is_first = i % 2 == 0
        other = tl.where(is_first, i + 1, i - 1)
    x = tl.load(source + i, mask=ok, other=0.0)
    y = tl.load(source + other, mask=ok, other=0.0)
    c = tl.load(cos + pair, mask=ok, other=0.0)
    s = tl.load(sin + pair, mask=ok, other=0.0)
    return x * c + tl.where(is_first, -y, y) * s


# One program per row and head; one more per row stores the latent and its key.
@jit(do_not_specialize=["n_ctx"], do_not_specialize_on_alignment=ROW_TABLES)
def prepare_kernel(
    q: tl.tensor,  # float32 [m, q_stride], heads of NOPE + ROPE
    kv: tl.tensor,  # float32 [m, kv_stride], RANK + ROPE
    weight: tl.tensor,  # float32 [RANK]
    cos: tl.tensor,  # float32 [n_ctx, ROPE / 2]
    sin: tl.tensor,
    positions: tl.tensor,  # int32 [m]
    seqs: tl.tensor,
    row_mask: tl.tensor,
    plain: tl.tensor,  # float32 [m * N_HEADS, NOPE]
    rotated: tl.tensor,  # float32 [m * N_HEADS, ROPE]
    cache: tl.tensor,  # [n_seqs, n_ctx, RANK + ROPE]
    cache_scale: tl.tensor,  # float16 [n_seqs, n_ctx, (RANK + ROPE) / 32], or None
    q_stride: tl.tensor,
    kv_stride: tl.tensor,
    n_ctx: tl.tensor,
    eps: tl.tensor,
    N_HEADS: tl.constexpr,
    NOPE: tl.constexpr,
    NOPE_PAD: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_PAD: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PAD: tl.constexpr,
    NEOX: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    head = tl.program_id(1)
    if tl.load(row_mask + row) == 0:
        return
    position = tl.load(positions + row).to(tl.int64)
    cos += position * (ROPE // 2)
    sin += position * (ROPE // 2)
    r = tl.arange(0, ROPE_PAD)
    if head < N_HEADS:
        own = q + row * q_stride + head * (NOPE + ROPE)
        n = tl.arange(0, NOPE_PAD)
        place = row * N_HEADS + head
        tl.store(plain + place * NOPE + n, tl.load(own + n, mask=n < NOPE, other=0.0), mask=n < NOPE)
        tl.store(rotated + place * ROPE + r, turned(own + NOPE, cos, sin, ROPE, ROPE_PAD, NEOX), mask=r < ROPE)
    else:
        shared = kv + row * kv_stride
        cell = (tl.load(seqs + row).to(tl.int64) * n_ctx + position) * (RANK + ROPE)
        i = tl.arange(0, RANK_PAD)
        x = tl.load(shared + i, mask=i < RANK, other=0.0)
        factor = tl.rsqrt(tl.sum(x * x, 0) / RANK + eps)
        x = x * factor * tl.load(weight + i, mask=i < RANK, other=0.0)
        store_cells(cache, cache_scale, cell, x, RANK, RANK_PAD)
        key = turned(shared + RANK, cos, sin, ROPE, ROPE_PAD, NEOX)
        store_cells(cache, cache_scale, cell + RANK, key, ROPE, ROPE_PAD)


@jit
def load_part(
    cache: tl.tensor,
    scale: tl.tensor,  # float16, or None
    at: tl.tensor,  # int64 [T], where each position's part begins
    inside: tl.tensor,  # [T]
    DIM: tl.constexpr,
    PAD: tl.constexpr,
) -> tl.tensor:
    """Load parts of cells [T, PAD]: as they are, or q8_0 as float16."""
    if scale is None:
        i = tl.arange(0, PAD)[None, :]
        value = tl.load(cache + at[:, None] + i, mask=inside[:, None] & (i < DIM), other=0.0)
    else:
        b = tl.arange(0, PAD // 32)[None, :]
        ok = inside[:, None] & (b < DIM // 32)
        place = (at[:, None] + b * 32)[:, :, None] + tl.arange(0, 32)[None, None, :]
        whole = tl.load(cache + place, mask=ok[:, :, None], other=0).to(tl.float32)
        factor = tl.load(scale + at[:, None] // 32 + b, mask=ok, other=0).to(tl.float32)
        value = tl.reshape((whole * factor[:, :, None]).to(tl.float16), [at.shape[0], PAD])
    return value


# One program per row, HEADS heads and split.
@jit(do_not_specialize=["n_ctx"], do_not_specialize_on_alignment=ROW_TABLES)
def split_kernel(
    latent: tl.tensor,  # float32 [m * N_HEADS, latent_stride]
    rotated: tl.tensor,  # float32 [m * N_HEADS, ROPE]
    cache: tl.tensor,  # [n_seqs, n_ctx, RANK + ROPE]
    cache_scale: tl.tensor,
    positions: tl.tensor,
    seqs: tl.tensor,
    row_mask: tl.tensor,
    peak: tl.tensor,  # as in attention.split_kernel
    mass: tl.tensor,
    part: tl.tensor,
    latent_stride: tl.tensor,
    n_ctx: tl.tensor,
    n_splits: tl.tensor,
    scale: tl.tensor,
    N_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PAD: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_PAD: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    split = tl.program_id(2)
    length = tl.load(positions + row) + 1
    start = split * SPLIT
    if (tl.load(row_mask + row) == 0) | (start >= length):
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = (head < N_HEADS)[:, None]
    i = tl.arange(0, RANK_PAD)
    r = tl.arange(0, ROPE_PAD)
    at = (row * N_HEADS + head)[:, None]
    query = tl.load(latent + at * latent_stride + i[None, :], mask=is_head & (i < RANK)[None, :], other=0.0) * scale
    turned_query = tl.load(rotated + at * ROPE + r[None, :], mask=is_head & (r < ROPE)[None, :], other=0.0) * scale
    cells = tl.load(seqs + row).to(tl.int64) * n_ctx

    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    out = tl.zeros([HEADS, RANK_PAD], tl.float32)
    # No unrolling: the products of a tile are hundreds of instructions for tensor cores, and take a minute to compile four times over.
    for tile in tl.range(0, SPLIT, TILE, num_stages=1):
        t = start + tile + tl.arange(0, TILE)
        inside = t < length
        stored = (cells + t) * (RANK + ROPE)
        value = load_part(cache, cache_scale, stored, inside, RANK, RANK_PAD)
        key = load_part(cache, cache_scale, stored + RANK, inside, ROPE, ROPE_PAD)
        if HALF:
            score = half_dot(query, tl.trans(value)) + half_dot(turned_query, tl.trans(key))
        else:
            score = tl.sum(query[:, None, :] * value[None, :, :], 2)
            score += tl.sum(turned_query[:, None, :] * key[None, :, :], 2)
        score = tl.where(inside[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        fade = tl.exp(top - higher)
        p = tl.exp(score - higher[:, None])  # [HEADS, TILE]
        total = total * fade + tl.sum(p, 1)
        out *= fade[:, None]
        if HALF:
            out += half_dot(p, value)
        else:
            out += tl.sum(p[:, :, None] * value[None, :, :], 1)
        top = higher

    cell = (row * N_HEADS + head) * n_splits + split
    tl.store(peak + cell, top, mask=head < N_HEADS)
    tl.store(mass + cell, total, mask=head < N_HEADS)
    tl.store(part + cell[:, None] * RANK + i[None, :], out, mask=is_head & (i < RANK)[None, :])


@dataclass(frozen=True)
class LatentCache:
    """Latents and rotated keys of one layer, [n_seqs, n_ctx, rank + rope], float32, float16, or int8 with float16 scales per 32, contiguous."""

    data: torch.Tensor
    rank: int
    scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        assert self.data.is_contiguous()
        assert (self.data.dtype == torch.int8) == (self.scale is not None)
        assert self.scale is None or self.rank % BLOCK == self.rope % BLOCK == 0

    def copy(self, source: int, target: int, n: int) -> None:
        """Give a sequence another's first `n` positions."""
        for part in (self.data, self.scale):
            if part is not None:
                part[target, :n].copy_(part[source, :n])

    @property
    def n_ctx(self) -> int:
        return self.data.shape[1]

    @property
    def rope(self) -> int:
        return self.data.shape[2] - self.rank


@dataclass(frozen=True)
class LatentRope:
    """Tables float32 [n_ctx, rope / 2], whether halves pair, and the norm of latents, float32 [rank]."""

    cos: torch.Tensor
    sin: torch.Tensor
    neox: bool
    norm: torch.Tensor
    eps: float


def prepare_latent(
    q: torch.Tensor,
    kv: torch.Tensor,
    rope: LatentRope,
    cache: LatentCache,
    rows: Rows,
    plain: torch.Tensor,
    rotated: torch.Tensor,
) -> None:
    """Store kv [m, >= rank + rope], normed and turned; cut q [m, >= n_heads * (nope + rope)] into plain [m * n_heads, nope] and rotated [., rope]."""
    n_heads, nope = len(plain) // len(q), plain.shape[1]
    assert rotated.shape == (len(plain), cache.rope)
    assert plain.is_contiguous()
    assert rotated.is_contiguous()
    prepare_kernel[(len(q), n_heads + 1)](
        q,
        kv,
        rope.norm,
        rope.cos,
        rope.sin,
        rows.positions,
        rows.seqs,
        rows.row_mask,
        plain,
        rotated,
        cache.data,
        cache.scale,
        q.stride(0),
        kv.stride(0),
        cache.n_ctx,
        rope.eps,
        N_HEADS=n_heads,
        NOPE=nope,
        NOPE_PAD=next_power_of_2(nope),
        ROPE=cache.rope,
        ROPE_PAD=next_power_of_2(cache.rope),
        RANK=cache.rank,
        RANK_PAD=next_power_of_2(cache.rank),
        NEOX=rope.neox,
        num_warps=1,
    )


def latent_attention(
    latent: torch.Tensor,
    rotated: torch.Tensor,
    cache: LatentCache,
    rows: Rows,
    scale: float,
    buffers: SplitBuffers,
    out: torch.Tensor,
) -> None:
    """Write out float32 [m, n_heads * rank] for latent [m * n_heads, >= rank] and rotated [m * n_heads, rope]; rows of mask 0 stay."""
    m = len(out)
    n_heads = len(rotated) // m
    assert buffers.part.shape[1] == n_heads
    assert buffers.part.shape[3] == cache.rank
    # Before compute capability 8 the products of 512 wide latents want more shared memory than there is: one head at a time, in float32.
    half = cache.data.dtype != torch.float32 and has_tensor_cores(cache.data.device)
    heads = HEADS if half else 1
    split_kernel[(m, cdiv(n_heads, heads), buffers.part.shape[2])](
        latent,
        rotated,
        cache.data,
        cache.scale,
        rows.positions,
        rows.seqs,
        rows.row_mask,
        buffers.peak,
        buffers.mass,
        buffers.part,
        latent.stride(0),
        cache.n_ctx,
        buffers.part.shape[2],
        scale,
        N_HEADS=n_heads,
        HEADS=heads,
        TILE=16,
        HALF=half,
        num_warps=4,
        **_sizes(cache.rank, cache.rope),
    )
    combine_splits(buffers, rows, out)


def _sizes(rank: int, rope: int) -> dict[str, int]:
    padded = {"RANK_PAD": max(16, next_power_of_2(rank)), "ROPE_PAD": max(16, next_power_of_2(rope))}
    return {"RANK": rank, "ROPE": rope, "SPLIT": SPLIT} | padded


def reference(
    latent: torch.Tensor, rotated: torch.Tensor, cache: LatentCache, rows: Rows, scale: float
) -> torch.Tensor:
    """Compute the same in plain PyTorch, in float64: [m, n_heads * rank]."""
    m = len(rows.positions)
    query = torch.cat([latent[:, : cache.rank], rotated], 1).double().view(m, -1, cache.data.shape[2])
    out = []
    for r in range(m):
        stored = floats(cache.data, cache.scale)[int(rows.seqs[r]), : int(rows.positions[r]) + 1].double()
        weights = torch.softmax(scale * query[r] @ stored.T, -1)
        out.append((weights @ stored[:, : cache.rank]).flatten())
    return torch.stack(out)


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: DeepSeek's sizes."""
    rows = dict.fromkeys(("positions", "seqs", "row_mask"), "*i32")
    floats = dict.fromkeys(("q", "kv", "weight", "cos", "sin", "plain", "rotated"), "*fp32")
    sizes = dict.fromkeys(("q_stride", "kv_stride", "n_ctx"), "i32") | {"eps": "fp32"}
    shape = {"N_HEADS": 128, "NOPE": 128, "NOPE_PAD": 128, "ROPE": 64, "ROPE_PAD": 64, "RANK": 512, "RANK_PAD": 512}
    cases = []
    # The other targets get the first case of each kernel: the one that runs on all of them.
    for dtype, heads in (("fp32", 1), ("fp16", 1), ("fp16", HEADS), ("i8", HEADS)):
        cache = {"cache": f"*{dtype}"} | ({"cache_scale": "*fp16"} if dtype == "i8" else {})
        absent: dict[str, Any] = {} if dtype == "i8" else {"cache_scale": None}
        types = floats | rows | sizes | cache
        cases.append(
            CompileCase(
                f"latent {dtype}", prepare_kernel, types, shape | absent | {"NEOX": heads == 1}, 1, fp_fusion=True
            )
        )
        types = dict.fromkeys(("latent", "rotated", "peak", "mass", "part"), "*fp32") | rows | cache
        types |= dict.fromkeys(("latent_stride", "n_ctx", "n_splits"), "i32") | {"scale": "fp32"}
        constants = {"N_HEADS": 128, "HEADS": heads, "TILE": 16, "HALF": heads > 1} | _sizes(512, 64) | absent
        cases.append(CompileCase(f"latent attention {dtype}", split_kernel, types, constants, 4, fp_fusion=True))
    return cases
