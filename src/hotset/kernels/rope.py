"""Head norm and rotary embedding of q and k, and the storing of k and v, in one launch.

a, b = the two halves of a head's first rope_dims values; y_a = a cos - b sin, y_b = a sin + b cos; the rest stays as it is. A norm is
taken before, or (NORM_LAST) its weights multiply what was turned: turning changes no length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import next_power_of_2
from hotset.kernels.kv_cache import store_cells
from hotset.kernels.rows import ROW_TABLES
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.kv_cache import KVCache
    from hotset.kernels.rows import Rows


# A thread reads and writes both values of a pair, so q may be turned in place.
@jit
def turned_head(
    head: tl.tensor,  # float32 [HEAD_DIM]
    weight: tl.tensor,  # float32 [HEAD_DIM]
    cos: tl.tensor,  # float32 [HALF]
    sin: tl.tensor,  # float32 [HALF]
    eps: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    rest: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    NORM: tl.constexpr,
    NORM_LAST: tl.constexpr,
) -> tl.tensor:
    i = tl.arange(0, HALF_PAD)
    a = tl.load(head + first, mask=i < HALF, other=0.0)  # [HALF_PAD]
    b = tl.load(head + second, mask=i < HALF, other=0.0)
    c = tl.load(head + rest, mask=rest < HEAD_DIM, other=0.0)
    if NORM:
        square = tl.sum(a * a + b * b, 0) + tl.sum(c * c, 0)
        factor = tl.rsqrt(square / HEAD_DIM + eps)
        weight_a = tl.load(weight + first, mask=i < HALF, other=0.0)
        weight_b = tl.load(weight + second, mask=i < HALF, other=0.0)
        c = c * factor * tl.load(weight + rest, mask=rest < HEAD_DIM, other=0.0)
        if not NORM_LAST:
            a = a * factor * weight_a
            b = b * factor * weight_b
    x = tl.load(cos + i, mask=i < HALF, other=0.0)
    y = tl.load(sin + i, mask=i < HALF, other=0.0)
    turned_a = a * x - b * y
    turned_b = a * y + b * x
    if NORM and NORM_LAST:
        turned_a = turned_a * factor * weight_a
        turned_b = turned_b * factor * weight_b
    return turned_a, turned_b, c


# The same with the head's values in their order, which blocks of 32 want: a pair is computed twice, once for each of its values.
@jit
def turned_in_order(
    head: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    eps: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    HALF: tl.constexpr,
    NEOX: tl.constexpr,
    NORM: tl.constexpr,
    NORM_LAST: tl.constexpr,
) -> tl.tensor:
    d = tl.arange(0, DIM_PAD)
    turns = d < 2 * HALF
    if NEOX:
        is_first = d < HALF
        pair = tl.where(is_first, d, d - HALF)
        other = tl.where(is_first, d + HALF, d - HALF)
    else:
        is_first = d % 2 == 0
        pair = d // 2
        other = d ^ 1
    x = tl.load(head + d, mask=d < HEAD_DIM, other=0.0)
    y = tl.load(head + other, mask=turns, other=0.0)
    if NORM:
        factor = tl.rsqrt(tl.sum(x * x, 0) / HEAD_DIM + eps)
        own = tl.load(weight + d, mask=d < HEAD_DIM, other=0.0)
        if not NORM_LAST:
            x = x * factor * own
            y = y * factor * tl.load(weight + other, mask=turns, other=0.0)
    c = tl.load(cos + pair, mask=turns, other=1.0)
    s = tl.load(sin + pair, mask=turns, other=0.0)
    turned = x * c + tl.where(is_first, -y, y) * s
    if NORM and NORM_LAST:
        turned = turned * factor * own
    return turned


# One program per row and head: first those of q, then those of k, which store v's as well.
@jit(do_not_specialize=["n_ctx"], do_not_specialize_on_alignment=ROW_TABLES)
def rope_kernel(
    q: tl.tensor,  # float32 [m, q_stride]
    k: tl.tensor,  # float32 [m, k_stride]
    v: tl.tensor,  # float32 [m, v_stride]
    q_weight: tl.tensor,  # float32 [HEAD_DIM]
    k_weight: tl.tensor,
    cos: tl.tensor,  # float32 [n_ctx, HALF]
    sin: tl.tensor,
    positions: tl.tensor,  # int32 [m]
    seqs: tl.tensor,  # int32 [m]
    row_mask: tl.tensor,  # int32 [m]
    k_cache: tl.tensor,  # [n_seqs, N_KV, n_ctx, HEAD_DIM]
    k_scale: tl.tensor,  # float16 [n_seqs, N_KV, n_ctx, HEAD_DIM / 32], or None
    v_cache: tl.tensor,  # [n_seqs, N_KV, n_ctx, VALUE_DIM]
    v_scale: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    n_ctx: tl.tensor,
    eps: tl.tensor,
    N_HEADS: tl.constexpr,
    N_KV: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    DIM_PAD: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    NEOX: tl.constexpr,
    NORM: tl.constexpr,
    NORM_LAST: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    head = tl.program_id(1)
    if tl.load(row_mask + row) == 0:
        return
    position = tl.load(positions + row).to(tl.int64)
    cos += position * HALF
    sin += position * HALF
    i = tl.arange(0, HALF_PAD)
    if NEOX:
        first = i
        second = i + HALF
    else:
        first = 2 * i
        second = 2 * i + 1
    rest = 2 * HALF + tl.arange(0, REST_PAD)
    if head < N_HEADS:
        at = q + row * q_stride + head * HEAD_DIM
        a, b, c = turned_head(
            at, q_weight, cos, sin, eps, first, second, rest, HEAD_DIM, HALF, HALF_PAD, NORM, NORM_LAST
        )
        tl.store(at + first, a, mask=i < HALF)
        tl.store(at + second, b, mask=i < HALF)
        tl.store(at + rest, c, mask=rest < HEAD_DIM)
    else:
        h = head - N_HEADS
        slot = (tl.load(seqs + row).to(tl.int64) * N_KV + h) * n_ctx + position
        cell = slot * HEAD_DIM
        at = k + row * k_stride + h * HEAD_DIM
        if k_scale is None:
            a, b, c = turned_head(
                at, k_weight, cos, sin, eps, first, second, rest, HEAD_DIM, HALF, HALF_PAD, NORM, NORM_LAST
            )
            tl.store(k_cache + cell + first, a.to(k_cache.dtype.element_ty), mask=i < HALF)
            tl.store(k_cache + cell + second, b.to(k_cache.dtype.element_ty), mask=i < HALF)
            tl.store(k_cache + cell + rest, c.to(k_cache.dtype.element_ty), mask=rest < HEAD_DIM)
        else:
            turned = turned_in_order(at, k_weight, cos, sin, eps, HEAD_DIM, DIM_PAD, HALF, NEOX, NORM, NORM_LAST)
            store_cells(k_cache, k_scale, cell, turned, HEAD_DIM, DIM_PAD)
        d = tl.arange(0, VALUE_PAD)
        value = tl.load(v + row * v_stride + h * VALUE_DIM + d, mask=d < VALUE_DIM, other=0.0)
        store_cells(v_cache, v_scale, slot * VALUE_DIM, value, VALUE_DIM, VALUE_PAD)


@dataclass(frozen=True)
class DeviceRope:
    """How a layer turns its heads: tables float32 [n_ctx, rope_dims / 2]; `neox` pairs the halves, otherwise neighbours pair.

    Head norms (both or none) are float32 [head_dim] with their `eps`.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    neox: bool = True
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6
    norm_last: bool = False


def qk_norm_rope_store(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rope: DeviceRope,
    cache: KVCache,
    rows: Rows,
) -> None:
    """Turn q [m, n_heads * head_dim] in place and store k [m, n_kv * head_dim] and v [m, n_kv * value_dim] where `rows` says.

    All float32 with contiguous rows. A row of mask 0 stays as it is and stores nothing.
    """
    n_kv, head_dim = cache.n_kv, cache.head_dim
    cache.check()
    half = rope.cos.shape[1]
    rest = head_dim - 2 * half
    assert (rope.q_norm is None) == (rope.k_norm is None)
    assert rope.cos.is_contiguous()
    assert rope.cos.shape == rope.sin.shape
    assert len(rope.cos) >= cache.n_ctx
    assert rest >= 0
    assert q.shape[1] % head_dim == 0
    assert k.shape[1] == n_kv * head_dim
    assert v.shape[1] == n_kv * cache.value_dim
    assert q.stride(1) == k.stride(1) == v.stride(1) == 1
    n_heads = q.shape[1] // head_dim
    rope_kernel[(q.shape[0], n_heads + n_kv)](
        q,
        k,
        v,
        q if rope.q_norm is None else rope.q_norm,
        k if rope.k_norm is None else rope.k_norm,
        rope.cos,
        rope.sin,
        rows.positions,
        rows.seqs,
        rows.row_mask,
        *cache.tensors,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        cache.n_ctx,
        rope.eps,
        N_HEADS=n_heads,
        N_KV=n_kv,
        HEAD_DIM=head_dim,
        HALF=half,
        HALF_PAD=next_power_of_2(max(half, 1)),
        REST_PAD=next_power_of_2(max(rest, 1)),
        DIM_PAD=next_power_of_2(head_dim),
        VALUE_DIM=cache.value_dim,
        VALUE_PAD=next_power_of_2(cache.value_dim),
        NEOX=rope.neox,
        NORM=rope.q_norm is not None,
        NORM_LAST=rope.norm_last,
        num_warps=1,
    )


def reference(heads: torch.Tensor, rope: DeviceRope, weight: torch.Tensor | None, rows: Rows) -> torch.Tensor:
    """Norm and turn heads [m, n, head_dim] in plain PyTorch, in float64."""
    x = heads.double()

    def normed(x: torch.Tensor) -> torch.Tensor:
        return x if weight is None else x / (x.square().mean(-1, keepdim=True) + rope.eps).sqrt() * weight

    x = x if rope.norm_last else normed(x)
    half = rope.cos.shape[1]
    cos, sin = (table[rows.positions.long()].double().unsqueeze(1) for table in (rope.cos, rope.sin))
    first, second = (
        (slice(half), slice(half, 2 * half)) if rope.neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    turned = x.clone()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., first] * sin + x[..., second] * cos
    return normed(turned) if rope.norm_last else turned


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("q", "k", "v", "q_weight", "k_weight", "cos", "sin"), "*fp32")
    types |= dict.fromkeys(("positions", "seqs", "row_mask"), "*i32") | {"eps": "fp32"}
    types |= dict.fromkeys(("q_stride", "k_stride", "v_stride", "n_ctx"), "i32")
    cases = []
    for dtype, half, neox in (("fp16", 64, True), ("fp32", 20, False), ("i8", 64, True), ("i8", 20, False)):
        caches = dict.fromkeys(("k_cache", "v_cache"), f"*{dtype}")
        scales = dict.fromkeys(("k_scale", "v_scale"), "*fp16") if dtype == "i8" else {}
        constants = {
            "N_HEADS": 32,
            "N_KV": 4,
            "HEAD_DIM": 128,
            "HALF": half,
            "HALF_PAD": next_power_of_2(half),
            "REST_PAD": next_power_of_2(max(1, 128 - 2 * half)),
            "DIM_PAD": 128,
            "VALUE_DIM": 128,
            "VALUE_PAD": 128,
            "NEOX": neox,
            "NORM": True,
            "NORM_LAST": not neox,
            **({} if scales else dict.fromkeys(("k_scale", "v_scale"))),
        }
        cases.append(CompileCase(f"rope {dtype}", rope_kernel, types | caches | scales, constants, 1, fp_fusion=True))
    return cases
