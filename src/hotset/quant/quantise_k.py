"""Q4_K and Q6_K from floats: scales by weighted least squares, searched sub-block by sub-block and then refined as the file rounds them.

For given integers the best scale (and minimum) has a closed form; which integers are best depends on the scale. So a few scales around the
obvious one are tried, the one of least error is kept, rounded to the integers that a block holds, and tried again with its neighbours.
Errors are weighted, as in ggml's k-quants, with what makes large weights count more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.quant.bits import pack_six_bits
from hotset.quant.layout import Bytes

Floats = NDArray[np.float32]
STEPS = np.linspace(-1, 1, 15, dtype=np.float32)


def _dot(*factors: Floats) -> Floats:
    """Sum of products over the last axis."""
    letters = ",".join(["...k"] * len(factors))
    return np.asarray(np.einsum(f"{letters}->...", *factors))


def _ratio(a: Floats, b: Floats) -> Floats:
    """A / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape, np.float32), where=b != 0)


def _affine(x: Floats, w: Floats, top: int) -> tuple[Floats, Floats]:
    """The scale and minimum of each sub-block [..., k] such that scale q - minimum with q = 0 .. top is close; both at least 0."""
    low = np.minimum(x.min(-1), 0)
    width = x.max(-1) - low
    sw, swx = w.sum(-1), _dot(w, x)
    best = np.full(low.shape, np.inf, np.float32)
    scale, minimum = np.zeros_like(low), -low
    for step in STEPS:
        q = np.rint(_ratio(top + step, width)[..., None] * (x - low[..., None])).clip(0, top)
        wq = w * q
        sq, sqq, sxq = wq.sum(-1), _dot(wq, q), _dot(wq, x)
        a, b = _solve(sqq, sq, sw, sxq, swx)
        alone = (b < 0) | (a <= 0)
        a, b = np.where(alone, _ratio(sxq, sqq), a), np.where(alone, 0, b)
        error = a * a * sqq - 2 * a * (sxq + b * sq) + b * (2 * swx + b * sw)  # less the sum of w x^2
        better = (error < best) & (a > 0)
        best = np.where(better, error, best)
        scale, minimum = np.where(better, a, scale), np.where(better, b, minimum)
    return scale, minimum


def _solve(saa: Floats, sab: Floats, sbb: Floats, sax: Floats, sbx: Floats) -> tuple[Floats, Floats]:
    """The a and b of least error for x = a A - b B, from sums of products; zeros where A and B are as good as one."""
    determinant = saa * sbb - sab * sab
    determinant = np.where(determinant > 1e-6 * saa * sbb, determinant, 0)
    return _ratio(sax * sbb - sbx * sab, determinant), _ratio(sab * sax - saa * sbx, determinant)


def _half_above(x: NDArray[Any]) -> Floats:
    """The least float16 that is not nearer to 0, so that what is divided by it keeps its bound."""
    half = x.astype(np.float16)
    away = np.nextafter(half, np.copysign(np.float16(np.inf), half))
    return np.where(np.abs(half.astype(np.float32)) < np.abs(x), away, half).astype(np.float32)


def _half(x: NDArray[Any]) -> Floats:
    """Rounded as the file rounds it."""
    return x.astype(np.float16).astype(np.float32)


def quantise_q4_k(x: Floats) -> Bytes:
    """Float32 [n, 256] -> uint8 [n, 144]."""
    x = x.reshape(-1, 8, 32)
    w = np.sqrt(_dot(x, x) / 32)[..., None] + np.abs(x)
    scale, minimum = _affine(x, w, 15)
    d, dmin = _half_above(scale.max(-1) / 63), _half_above(minimum.max(-1) / 63)
    s = np.rint(_ratio(scale, d[:, None])).clip(0, 63)
    m = np.rint(_ratio(minimum, dmin[:, None])).clip(0, 63)
    s, m = _nearby_q4(x, w, d, dmin, s, m)
    q = _integers_q4(x, d, dmin, s, m)
    # The two scales of the whole block, now that all integers are known; then the integers once more.
    a, b = s[..., None] * q, np.broadcast_to(m[..., None], x.shape)
    w_, a, b, x_ = (v.reshape(len(x), 256) for v in (w, a, b, x))
    new_d, new_dmin = _solve(_dot(w_, a, a), _dot(w_, a, b), _dot(w_, b, b), _dot(w_, a, x_), _dot(w_, b, x_))
    new_d, new_dmin = _half(new_d), _half(new_dmin)
    better = _error_q4(x, w, new_d, new_dmin, s, m).sum(-1) < _error_q4(x, w, d, dmin, s, m).sum(-1)
    d, dmin = np.where(better, new_d, d), np.where(better, new_dmin, dmin)
    nibbles = _integers_q4(x, d, dmin, s, m).astype(np.uint8).reshape(-1, 4, 2, 32)
    scales = np.stack([d, dmin], axis=-1).astype("<f2").view(np.uint8)
    sixes = pack_six_bits(s.astype(np.uint8), m.astype(np.uint8))
    low = nibbles[:, :, 0] | nibbles[:, :, 1] << 4
    return np.concatenate([scales, sixes, low.reshape(-1, 128)], axis=-1)


def _integers_q4(x: Floats, d: Floats, dmin: Floats, s: Floats, m: Floats) -> Floats:
    return np.rint(_ratio(x + (dmin[:, None] * m)[..., None], (d[:, None] * s)[..., None])).clip(0, 15)


def _error_q4(x: Floats, w: Floats, d: Floats, dmin: Floats, s: Floats, m: Floats) -> Floats:
    """The weighted error of each sub-block [n, 8]."""
    off = (d[:, None] * s)[..., None] * _integers_q4(x, d, dmin, s, m) - (dmin[:, None] * m)[..., None] - x
    return _dot(w, off, off)


def _nearby_q4(x: Floats, w: Floats, d: Floats, dmin: Floats, s: Floats, m: Floats) -> tuple[Floats, Floats]:
    """The best of the neighbours of the rounded scales and minima."""
    best, best_s, best_m = _error_q4(x, w, d, dmin, s, m), s, m
    for ds in (-1, 0, 1):
        for dm in (-1, 0, 1):
            one_s, one_m = (s + ds).clip(0, 63), (m + dm).clip(0, 63)
            error = _error_q4(x, w, d, dmin, one_s, one_m)
            better = error < best
            best = np.where(better, error, best)
            best_s, best_m = np.where(better, one_s, best_s), np.where(better, one_m, best_m)
    return best_s, best_m


def quantise_q6_k(x: Floats) -> Bytes:
    """Float32 [n, 256] -> uint8 [n, 210]."""
    x = x.reshape(-1, 16, 16)
    w = x * x
    scale = _symmetric(x, w, 32)
    largest = np.take_along_axis(scale, np.abs(scale).argmax(-1)[:, None], axis=-1)[:, 0]
    d = _half_above(largest / -128)
    s = np.rint(_ratio(scale, d[:, None])).clip(-128, 127)
    s = _nearby_q6(x, w, d, s)
    # The scale of the whole block, now that all integers are known; then the integers once more.
    a = (s[..., None] * _integers_q6(x, d, s)).reshape(len(x), 256)
    w_, x_ = w.reshape(len(x), 256), x.reshape(len(x), 256)
    new_d = _half(_ratio(_dot(w_, a, x_), _dot(w_, a, a)))
    better = _error_q6(x, w, new_d, s).sum(-1) < _error_q6(x, w, d, s).sum(-1)
    d = np.where(better, new_d, d)
    q = (_integers_q6(x, d, s) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([q[:, :, :2] & 15 | (q[:, :, 2:] & 15) << 4], axis=-1).reshape(-1, 128)
    pairs = q >> 4
    high = pairs[:, :, 0] | pairs[:, :, 1] << 2 | pairs[:, :, 2] << 4 | pairs[:, :, 3] << 6
    parts = (low, high.reshape(-1, 64), s.astype(np.int8).view(np.uint8), d[:, None].astype("<f2").view(np.uint8))
    return np.concatenate(parts, axis=-1)


def _symmetric(x: Floats, w: Floats, half: int) -> Floats:
    """The scale of each sub-block [..., k] such that scale q with q = -half .. half - 1 is close; its sign is that of the largest x, turned."""
    largest = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], axis=-1)
    best = np.full(x.shape[:-1], -1, np.float32)
    scale = np.zeros(x.shape[:-1], np.float32)
    for step in STEPS:
        q = np.rint(_ratio(-(half + step), largest) * x).clip(-half, half - 1)
        sxq, sqq = _dot(w, x, q), _dot(w, q, q)
        fit = sxq * _ratio(sxq, sqq)  # what the error is less than the sum of w x^2 by
        better = fit > best
        best = np.where(better, fit, best)
        scale = np.where(better, _ratio(sxq, sqq), scale)
    return scale


def _integers_q6(x: Floats, d: Floats, s: Floats) -> Floats:
    return np.rint(_ratio(x, (d[:, None] * s)[..., None])).clip(-32, 31)


def _error_q6(x: Floats, w: Floats, d: Floats, s: Floats) -> Floats:
    """The weighted error of each sub-block [n, 16]."""
    off = (d[:, None] * s)[..., None] * _integers_q6(x, d, s) - x
    return _dot(w, off, off)


def _nearby_q6(x: Floats, w: Floats, d: Floats, s: Floats) -> Floats:
    """The best of the neighbours of the rounded scales."""
    best, best_s = _error_q6(x, w, d, s), s
    for ds in (-1, 1):
        one = (s + ds).clip(-128, 127)
        error = _error_q6(x, w, d, one)
        better = error < best
        best, best_s = np.where(better, error, best), np.where(better, one, best_s)
    return best_s
