"""Activations: float32 rows and, in fast mode, the same rows as int8 in blocks of 32 with a scale each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hotset.host.compile import compiled
from hotset.host.memory import float_of_bits, magnitude_bits, power_of_two

X_BLOCK = 32
X_HALF = 16
# Rows from which on threads share the work of norms, rotations and activations.
PARALLEL_FROM = 16

FloatRows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Activation:
    """`f` float32 [m, n]; `q` int8 [m, n], `d` float32 [m, n/32] scales, `m` float32 [m, n/32] scale times sum of q, `h` int32 [m, n/16] sums of q.

    The last four are empty where n is no multiple of 32 or in reference mode.
    """

    f: FloatRows
    q: NDArray[np.int8]
    d: FloatRows
    m: FloatRows
    h: NDArray[np.int32]

    @property
    def n_rows(self) -> int:
        return self.f.shape[0]

    @property
    def has_integers(self) -> bool:
        return self.q.size > 0


def empty_activation(rows: int, n: int, *, integers: bool) -> Activation:
    """Uninitialised buffers."""
    cols = n if integers and n % X_BLOCK == 0 else 0
    return Activation(
        f=np.empty((rows, n), np.float32),
        q=np.empty((rows, cols), np.int8),
        d=np.empty((rows, cols // X_BLOCK), np.float32),
        m=np.empty((rows, cols // X_BLOCK), np.float32),
        h=np.empty((rows, cols // X_HALF), np.int32),
    )


@compiled(inline=True)
def quantize_row(f: Any, q: Any, d: Any, m: Any, h: Any) -> None:
    """D = max|x| / 127, q = x (127 / max|x|) rounded half to even, per block of 32."""
    for b in range(d.size):
        x, out = f[b * X_BLOCK : (b + 1) * X_BLOCK], q[b * X_BLOCK : (b + 1) * X_BLOCK]
        bits = np.int32(0)
        for i in range(X_BLOCK):
            bits = max(bits, magnitude_bits(x[i]))
        top = float_of_bits(bits)
        inverse = np.float32(127) / top if top > 0 else np.float32(0)
        for i in range(X_BLOCK):
            out[i] = np.int8(np.rint(x[i] * inverse))
        first, second = np.int32(0), np.int32(0)
        for i in range(X_HALF):
            first += np.int32(out[i])
        for i in range(X_HALF, X_BLOCK):
            second += np.int32(out[i])
        h[2 * b], h[2 * b + 1] = first, second
        d[b] = top / np.float32(127)
        m[b] = d[b] * np.float32(first + second)


@compiled(inline=True)
def exp32(x: Any) -> Any:
    """e^x in float32 to 2 units in the last place, as plain arithmetic that LLVM runs on all lanes (Cephes expf)."""
    clamped = min(max(x, np.float32(-87)), np.float32(88))
    n = np.floor(clamped * np.float32(1.44269504) + np.float32(0.5))
    r = clamped - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1)) * power_of_two(np.int32(n))


@cache
def _norm_kernel(parallel: bool) -> Any:
    @compiled(parallel=parallel)
    def norm(x: Any, weight: Any, eps: float, f: Any, q: Any, d: Any, m: Any, h: Any) -> None:
        n = x.shape[1]
        for r in numba.prange(x.shape[0]):
            total = 0.0
            for i in range(n):
                total += np.float64(x[r, i]) * np.float64(x[r, i])
            scale = np.float32(1.0 / math.sqrt(total / n + eps))
            for i in range(n):
                f[r, i] = x[r, i] * scale * weight[i]
            quantize_row(f[r], q[r], d[r], m[r], h[r])

    return norm


@cache
def _quantize_kernel(parallel: bool) -> Any:
    @compiled(parallel=parallel)
    def quantize(f: Any, q: Any, d: Any, m: Any, h: Any) -> None:
        for r in numba.prange(f.shape[0]):
            quantize_row(f[r], q[r], d[r], m[r], h[r])

    return quantize


@cache
def _swiglu_kernel(parallel: bool) -> Any:
    @compiled(parallel=parallel)
    def swiglu(gate: Any, up: Any, f: Any, q: Any, d: Any, m: Any, h: Any) -> None:
        for r in numba.prange(f.shape[0]):
            for i in range(f.shape[1]):
                g = gate[r, i]
                f[r, i] = g / (np.float32(1) + exp32(-g)) * up[r, i]
            quantize_row(f[r], q[r], d[r], m[r], h[r])

    return swiglu


@cache
def _shifted_norm_kernel(parallel: bool) -> Any:
    @compiled(parallel=parallel)
    def norm(x: Any, weight: Any, bias: Any, eps: float, centred: bool, f: Any, q: Any, d: Any, m: Any, h: Any) -> None:
        n = x.shape[1]
        for r in numba.prange(x.shape[0]):
            mean, total = 0.0, 0.0
            if centred:
                for i in range(n):
                    mean += np.float64(x[r, i])
                mean /= n
            for i in range(n):
                total += (np.float64(x[r, i]) - mean) * (np.float64(x[r, i]) - mean)
            scale = 1.0 / math.sqrt(total / n + eps)
            for i in range(n):
                f[r, i] = np.float32((np.float64(x[r, i]) - mean) * scale) * weight[i]
                if bias.size:
                    f[r, i] += bias[i]
            quantize_row(f[r], q[r], d[r], m[r], h[r])

    return norm


SILU, GELU, RELU, RELU_SQUARED, SWIGLU_OAI = range(5)


@compiled(inline=True)
def _activated(g: Any, kind: int) -> Any:
    one = np.float32(1)
    if kind == SILU:
        return g / (one + exp32(-g))
    if kind == GELU:  # Hendrycks and Gimpel 2016, by tanh
        return (
            np.float32(0.5) * g * (one + np.tanh(np.float32(0.7978845608) * g * (one + np.float32(0.044715) * g * g)))
        )
    if kind == SWIGLU_OAI:
        return g / (one + exp32(np.float32(-1.702) * g))
    positive = max(g, np.float32(0))
    return positive * positive if kind == RELU_SQUARED else positive


@cache
def _hidden_kernel(parallel: bool) -> Any:
    @compiled(parallel=parallel)
    def hidden(gate: Any, up: Any, kind: int, gated: bool, limit: float, f: Any) -> None:
        top = np.float32(limit)
        for r in numba.prange(f.shape[0]):
            for i in range(f.shape[1]):
                g, u = gate[r, i], up[r, i]
                if limit != 0:
                    g = min(g, top)
                    u = min(max(u, -top), top)
                y = _activated(g, kind)
                if gated:
                    y *= u + np.float32(1) if kind == SWIGLU_OAI else u
                f[r, i] = y

    return hidden


def shifted_norm(
    x: FloatRows, weight: FloatRows, bias: FloatRows, eps: float, *, centred: bool, integers: bool
) -> Activation:
    """Layer norm (`centred`) or RMS norm, plus a bias [n] or [0]."""
    a = empty_activation(*x.shape, integers=integers)
    _shifted_norm_kernel(x.shape[0] >= PARALLEL_FROM)(x, weight, bias, eps, centred, a.f, a.q, a.d, a.m, a.h)
    return a


def hidden_values(gate: FloatRows, up: FloatRows, n: int, kind: int, *, gated: bool, limit: float) -> FloatRows:
    """f(gate) * up per row, the first `n` columns; f(gate) alone unless `gated`. A `limit` bounds gate from above and up on both sides."""
    f = np.empty((gate.shape[0], n), np.float32)
    _hidden_kernel(gate.shape[0] >= PARALLEL_FROM)(gate, up, kind, gated, limit, f)
    return f


def rms_norm(x: FloatRows, weight: FloatRows, eps: float, *, integers: bool) -> Activation:
    """X / rms(x) * weight per row, float32 [m, n]."""
    a = empty_activation(*x.shape, integers=integers)
    _norm_kernel(x.shape[0] >= PARALLEL_FROM)(x, weight, eps, a.f, a.q, a.d, a.m, a.h)
    return a


def quantized(f: FloatRows, *, integers: bool) -> Activation:
    """The activation of given rows; `f` is kept, not copied."""
    a = empty_activation(*f.shape, integers=integers)
    a = Activation(f, a.q, a.d, a.m, a.h)
    if a.has_integers:
        _quantize_kernel(f.shape[0] >= PARALLEL_FROM)(a.f, a.q, a.d, a.m, a.h)
    return a


def swiglu(gate: FloatRows, up: FloatRows, n: int, *, integers: bool) -> Activation:
    """silu(gate) * up per row, the first `n` columns of each; the product stays float32 (it may pass float16's 65,504)."""
    a = empty_activation(gate.shape[0], n, integers=integers)
    _swiglu_kernel(gate.shape[0] >= PARALLEL_FROM)(gate, up, a.f, a.q, a.d, a.m, a.h)
    return a
