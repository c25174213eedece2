"""Attention of rows over the KV cache: norm of q and k per head, rotation, storing, softmax(q k^T scale) v.

Keys and values are float32, float16, or q8_0: int8 with a float16 scale per 32 values, q = x (127 / max |x|) rounded half to even.
"""

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

from hotset.host.activation import PARALLEL_FROM, exp32
from hotset.host.compile import compiled
from hotset.host.emit import F32, I8, I16, I64, LANES_F32, LANES_I32, Emitter
from hotset.host.memory import float_of_bits, magnitude_bits
from hotset.quant.layout import GROUP

_LANES_I8, _LANES_I16 = ir.VectorType(I8, GROUP), ir.VectorType(I16, GROUP)


# What an array of keys or values holds.
FLOAT32, FLOAT16, Q8_0 = range(3)
Q8_BLOCK = 32


def _values(e: Emitter, kind: int, address: Any, scales: Any, index: Any, lanes: int | None) -> Any:
    """Float32 value(s) from element `index` on at `address`; `scales` is where those of q8_0 lie."""
    if kind == FLOAT32:
        return e.b.load(e.at(address, e.b.mul(index, I64(4)), LANES_F32 if lanes else F32), align=1)
    if kind == FLOAT16:
        at = e.at(address, e.b.mul(index, I64(2)), _LANES_I16 if lanes else I16)
        return e.half_to_float(e.b.load(at, align=1), lanes)
    block = e.b.udiv(index, I64(Q8_BLOCK))
    scale = e.half_to_float(e.b.load(e.at(scales, e.b.mul(block, I64(2)), I16), align=1), None)
    quants = e.b.load(e.at(address, index, _LANES_I8 if lanes else I8), align=1)
    if lanes:
        return e.fmul(e.to_float(e.b.sext(quants, LANES_I32)), e.broadcast(scale))
    return e.fmul(e.b.sitofp(quants, F32), scale)


def _by_lanes(b: Any, n: Any, body: Any) -> None:
    """body(index, lanes) over whole vectors of n elements, then over what is left one by one."""
    vectors = b.udiv(n, I64(GROUP))
    with cgutils.for_range(b, vectors) as loop:
        body(b.mul(loop.index, I64(GROUP)), GROUP)
    with cgutils.for_range_slice(b, b.mul(vectors, I64(GROUP)), n, I64(1), I64) as (index, _):
        body(index, None)


@intrinsic(prefer_literal=True)
def dot_rows(typingctx: Any, kind: Any, a: Any, b: Any, scales: Any, n: Any) -> Any:
    """Sum of a[i] b[i] over n elements by address: a float32, b of the literal `kind`; a fixed order of sums."""
    b_kind = kind.literal_value

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        e = Emitter(builder, "portable")
        lanes = cgutils.alloca_once_value(builder, e.zeros())
        rest = cgutils.alloca_once_value(builder, F32(0.0))
        fma = e.intrinsic("llvm.fma.f32", F32, [F32] * 3)

        def body(index: Any, width: int | None) -> None:
            x = _values(e, FLOAT32, args[1], None, index, width)
            y = _values(e, b_kind, args[2], args[3], index, width)
            if width:
                builder.store(e.fma(x, y, builder.load(lanes)), lanes)
            else:
                builder.store(builder.call(fma, [x, y, builder.load(rest)]), rest)

        _by_lanes(builder, args[4], body)
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

    return types.float32(kind, types.int64, types.int64, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def add_scaled(typingctx: Any, kind: Any, factor: Any, x: Any, scales: Any, out: Any, n: Any) -> Any:
    """out[i] += factor x[i] over n elements by address; x of the literal `kind`."""
    x_kind = kind.literal_value

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        e = Emitter(builder, "portable")
        fma = e.intrinsic("llvm.fma.f32", F32, [F32] * 3)

        def body(index: Any, width: int | None) -> None:
            value = _values(e, x_kind, args[2], args[3], index, width)
            target = e.at(args[4], builder.mul(index, I64(4)), LANES_F32 if width else F32)
            old = builder.load(target, align=1)
            new = e.fma(e.broadcast(args[1]), value, old) if width else builder.call(fma, [args[1], value, old])
            builder.store(new, target, align=1)

        _by_lanes(builder, args[5], body)
        return context.get_dummy_value()

    return types.void(kind, types.float32, types.int64, types.int64, types.int64, types.int64), generate


@compiled(inline=True)
def _norm(x: Any, weight: Any, eps: float) -> None:
    """X / rms(x) * weight, in place."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    scale = np.float32(1.0 / math.sqrt(total / x.size + eps))
    for i in range(x.size):
        x[i] = x[i] * scale * weight[i]


@compiled(inline=True)
def _turn(x: Any, cos: Any, sin: Any, neighbours: bool) -> None:
    """Rotate the first 2 len(cos) elements, neighbours or the two halves paired."""
    half = cos.size
    if neighbours:
        for i in range(half):
            a, b = x[2 * i], x[2 * i + 1]
            x[2 * i] = a * cos[i] - b * sin[i]
            x[2 * i + 1] = b * cos[i] + a * sin[i]
    else:
        for i in range(half):
            a, b = x[i], x[half + i]
            x[i] = a * cos[i] - b * sin[i]
            x[half + i] = b * cos[i] + a * sin[i]


@compiled(inline=True)
def _prepare_heads(
    row: Any, weight: Any, eps: float, cos: Any, sin: Any, n: int, head: int, start: int, neighbours: bool, norm_last: bool
) -> None:  # fmt: skip
    """Norm (where there is a weight, one head's or that of all) and rotation, from element `start` of each head on, of one row of n heads."""
    whole = weight.size > head
    if whole:
        _norm(row[: n * head], weight, eps)
    for i in range(n):
        x = row[i * head : (i + 1) * head]
        if weight.size and not whole and not norm_last:
            _norm(x, weight, eps)
        _turn(x[start:], cos, sin, neighbours)
        if weight.size and not whole and norm_last:
            _norm(x, weight, eps)


@cache
def _prepare_kernel(parallel: bool) -> Any:
    @compiled(parallel=parallel)
    def prepare(
        rows: Any, weight: Any, eps: float, positions: Any, cos: Any, sin: Any, n: int, head: int, start: int, neighbours: bool,
        norm_last: bool,
    ) -> None:  # fmt: skip
        for r in numba.prange(positions.size):
            c, s = cos[positions[r]], sin[positions[r]]
            _prepare_heads(rows[r], weight, eps, c, s, n, head, start, neighbours, norm_last)

    return prepare


@compiled(inline=True)
def _quantise_block(x: Any, out: Any) -> Any:
    """Store a block's int8 values and return its scale."""
    bits = np.int32(0)
    for i in range(Q8_BLOCK):
        bits = max(bits, magnitude_bits(x[i]))
    top = float_of_bits(bits)
    inverse = np.float32(127) / top if top > np.float32(1e-30) else np.float32(0)
    for i in range(Q8_BLOCK):
        out[i] = np.int8(np.rint(x[i] * inverse))
    return top / np.float32(127)


@compiled()
def quantise_heads(x: Any, positions: Any, sequences: Any, cells: Any) -> Any:
    """Store rows x float32 [m, >= n_kv * head] in cells int8 [n_seqs, n_kv, n_ctx, head]; returns their scales float32 [m, n_kv, head / 32]."""
    _, n_kv, _, head = cells.shape
    blocks = head // Q8_BLOCK
    scales = np.empty((positions.size, n_kv, blocks), np.float32)
    for r in range(positions.size):
        for h in range(n_kv):
            cell = cells[sequences[r], h, positions[r]]
            for b in range(blocks):
                start = h * head + b * Q8_BLOCK
                scales[r, h, b] = _quantise_block(x[r, start : start + Q8_BLOCK], cell[b * Q8_BLOCK :])
    return scales


@cache
def attend_kernel(k_kind: int, v_kind: int) -> Any:
    """f(q, keys, key_scales, values, value_scales, first, positions, sequences, scale, softcap, sinks, head, value_head, n_heads, out).

    Keys and values [n_seqs, n_kv, n_ctx, width]: float32, uint16 (bits of float16) or int8 by their kind; scales uint16 (likewise)
    [n_seqs, n_kv, n_ctx, width / 32], of width 0 where there are none. The first `value_head` of a value's width count. A row sees
    first[row]..positions[row]; a softcap of 0 is none; sinks [n_heads] or [0] join the sum that probabilities are divided by.
    """

    @compiled(parallel=True)
    def attend(
        q: Any, keys: Any, key_scales: Any, values: Any, value_scales: Any, first: Any, positions: Any, sequences: Any, scale: float,
        softcap: float, sinks: Any, head: int, value_head: int, n_heads: int, out: Any,
    ) -> None:  # fmt: skip
        n_kv = keys.shape[1]
        rows = positions.size
        step, value_step = keys.shape[3] * keys.itemsize, values.shape[3] * values.itemsize
        k_scale_step, v_scale_step = key_scales.shape[3] * 2, value_scales.shape[3] * 2
        for task in numba.prange(rows * n_heads):
            row = task // n_heads
            i = task % n_heads
            group = i // (n_heads // n_kv)
            start = first[row]
            n = positions[row] + 1 - start
            key = keys[sequences[row], group].ctypes.data + start * step
            value = values[sequences[row], group].ctypes.data + start * value_step
            k_scale = key_scales[sequences[row], group].ctypes.data + start * k_scale_step
            v_scale = value_scales[sequences[row], group].ctypes.data + start * v_scale_step
            query = q[row, i * head :].ctypes.data
            scores = np.empty(n, np.float32)
            top = np.float32(-np.inf)
            for j in range(n):
                dot = dot_rows(k_kind, query, key + j * step, k_scale + j * k_scale_step, head)
                scores[j] = dot * np.float32(scale)
                if softcap != 0:
                    scores[j] = np.float32(softcap * math.tanh(scores[j] / softcap))
                top = max(top, scores[j])
            if sinks.size:
                top = max(top, sinks[i])
            total = 0.0
            for j in range(n):
                scores[j] = exp32(scores[j] - top)
            for j in range(n):
                total += scores[j]
            if sinks.size:
                total += exp32(sinks[i] - top)
            target = out[row, i * value_head : (i + 1) * value_head]
            target[:] = np.float32(0)
            inverse = np.float32(1.0 / total)
            for j in range(n):
                at, at_scale = value + j * value_step, v_scale + j * v_scale_step
                add_scaled(v_kind, scores[j] * inverse, at, at_scale, target.ctypes.data, value_head)

    return attend


def prepare_heads(
    rows: Any, weight: Any, eps: float, positions: Any, tables: tuple[Any, Any], n: int, head: int, *, start: int = 0,
    neighbours: bool = False, norm_last: bool = False,
) -> None:  # fmt: skip
    """Norm and rotation of rows float32 [m, >= n * head], in place; tables of cosines and sines float32 [n_ctx, n_rotated / 2].

    `weight` [head] norms each head, [n * head] all at once, [0] nothing; `norm_last` norms heads after the rotation.
    """
    _prepare_kernel(positions.size >= PARALLEL_FROM)(
        rows, weight, eps, positions, *tables, n, head, start, neighbours, norm_last
    )  # fmt: skip
