"""Attention of rows over the KV cache: norm of q and k per head, rotation, storing, softmax(q k^T scale) v."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hotset.host.activation import exp32
from hotset.host.compile import compiled
from hotset.host.emit import F32, I16, I64, LANES_F32, Emitter
from hotset.quant.layout import GROUP

_LANES_I16 = ir.VectorType(I16, GROUP)


def _values(e: Emitter, address: Any, index: Any, is_half: bool, lanes: int | None) -> Any:
    """Float32 value(s) from element `index` on of float32 or float16 at `address`."""
    at = e.b.mul(index, I64(2 if is_half else 4))
    if is_half:
        return e.half_to_float(e.b.load(e.at(address, at, _LANES_I16 if lanes else I16), align=1), lanes)
    return e.b.load(e.at(address, at, LANES_F32 if lanes else F32), align=1)


def _by_lanes(b: Any, n: Any, body: Any) -> None:
    """body(index, lanes) over whole vectors of n elements, then over what is left one by one."""
    vectors = b.udiv(n, I64(GROUP))
    with cgutils.for_range(b, vectors) as loop:
        body(b.mul(loop.index, I64(GROUP)), GROUP)
    with cgutils.for_range_slice(b, b.mul(vectors, I64(GROUP)), n, I64(1), I64) as (index, _):
        body(index, None)


@intrinsic(prefer_literal=True)
def dot_rows(typingctx: Any, half: Any, a: Any, b: Any, n: Any) -> Any:
    """Sum of a[i] b[i] over n elements: a float32, b float32 or (literal `half` 1) float16, by address; a fixed order of sums."""
    is_half = bool(half.literal_value)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        e = Emitter(builder, "portable")
        lanes = cgutils.alloca_once_value(builder, e.zeros())
        rest = cgutils.alloca_once_value(builder, F32(0.0))
        fma = e.intrinsic("llvm.fma.f32", F32, [F32] * 3)

        def body(index: Any, width: int | None) -> None:
            x = _values(e, args[1], index, False, width)
            y = _values(e, args[2], index, is_half, width)
            if width:
                builder.store(e.fma(x, y, builder.load(lanes)), lanes)
            else:
                builder.store(builder.call(fma, [x, y, builder.load(rest)]), rest)

        _by_lanes(builder, args[3], body)
        total, width = builder.load(lanes), GROUP
        while width > 1:  # a tree of halves
            width //= 2
            undefined = ir.Constant(total.type, ir.Undefined)
            parts = [
                builder.shuffle_vector(total, undefined, ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(i, i + width))))
                for i in (0, width)
            ]  # fmt: skip
            total = builder.fadd(*parts)
        return builder.fadd(builder.extract_element(total, ir.IntType(32)(0)), builder.load(rest))

    return types.float32(half, types.int64, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def add_scaled(typingctx: Any, half: Any, scale: Any, x: Any, out: Any, n: Any) -> Any:
    """out[i] += scale x[i] over n elements by address; x float32 or (literal `half` 1) float16."""
    is_half = bool(half.literal_value)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        e = Emitter(builder, "portable")
        fma = e.intrinsic("llvm.fma.f32", F32, [F32] * 3)

        def body(index: Any, width: int | None) -> None:
            value = _values(e, args[2], index, is_half, width)
            target = e.at(args[3], builder.mul(index, I64(4)), LANES_F32 if width else F32)
            old = builder.load(target, align=1)
            new = e.fma(e.broadcast(args[1]), value, old) if width else builder.call(fma, [args[1], value, old])
            builder.store(new, target, align=1)

        _by_lanes(builder, args[4], body)
        return context.get_dummy_value()

    return types.void(half, types.float32, types.int64, types.int64, types.int64), generate


@compiled(inline=True)
def _rotate_head(x: Any, weight: Any, eps: float, cos: Any, sin: Any) -> None:
    """RMS norm of one head (where there is a weight), then the rotation of its first 2 len(cos) elements, halves paired (NeoX)."""
    if weight.size:
        total = 0.0
        for i in range(x.size):
            total += np.float64(x[i]) * np.float64(x[i])
        scale = np.float32(1.0 / math.sqrt(total / x.size + eps))
        for i in range(x.size):
            x[i] = x[i] * scale * weight[i]
    half = cos.size
    for i in range(half):
        a, b = x[i], x[half + i]
        x[i] = a * cos[i] - b * sin[i]
        x[half + i] = b * cos[i] + a * sin[i]


@cache
def _prepare_kernel(parallel: bool) -> Any:
    @compiled(parallel=parallel)
    def prepare(
        q: Any, k: Any, q_norm: Any, k_norm: Any, eps: float, positions: Any, cos: Any, sin: Any, n_heads: int, n_kv: int, head: int
    ) -> None:  # fmt: skip
        for r in numba.prange(positions.size):
            c, s = cos[positions[r]], sin[positions[r]]
            for i in range(n_heads):
                _rotate_head(q[r, i * head : (i + 1) * head], q_norm, eps, c, s)
            for i in range(n_kv):
                _rotate_head(k[r, i * head : (i + 1) * head], k_norm, eps, c, s)

    return prepare


@cache
def attend_kernel(half: int) -> Any:
    """f(q, keys, values, positions, sequences, scale, out): keys and values [n_seqs, n_kv, n_ctx, head] as float32, or uint16 bits if half."""

    @compiled(parallel=True)
    def attend(
        q: Any, keys: Any, values: Any, positions: Any, sequences: Any, scale: float, head: int, n_heads: int, out: Any
    ) -> None:
        n_kv = keys.shape[1]
        rows = positions.size
        step = keys.shape[3] * keys.itemsize
        for task in numba.prange(rows * n_heads):
            row = task // n_heads
            i = task % n_heads
            group = i // (n_heads // n_kv)
            n = positions[row] + 1
            key = keys[sequences[row], group].ctypes.data
            value = values[sequences[row], group].ctypes.data
            query = q[row, i * head :].ctypes.data
            scores = np.empty(n, np.float32)
            top = np.float32(-np.inf)
            for j in range(n):
                scores[j] = dot_rows(half, query, key + j * step, head) * np.float32(scale)
                top = max(top, scores[j])
            total = 0.0
            for j in range(n):
                scores[j] = exp32(scores[j] - top)
            for j in range(n):
                total += scores[j]
            target = out[row, i * head : (i + 1) * head]
            target[:] = np.float32(0)
            inverse = np.float32(1.0 / total)
            for j in range(n):
                add_scaled(half, scores[j] * inverse, value + j * step, target.ctypes.data, head)

    return attend


def rotate(
    q: Any, k: Any, q_norm: Any, k_norm: Any, eps: float, positions: Any, cos: Any, sin: Any, *, n_heads: int, n_kv: int, head: int
) -> None:  # fmt: skip
    """Norm and rotation of q float32 [m, n_heads * head] and k [m, n_kv * head], in place; cos and sin float32 [n_ctx, n_rotated / 2]."""
    _prepare_kernel(positions.size >= 16)(q, k, q_norm, k_norm, eps, positions, cos, sin, n_heads, n_kv, head)
