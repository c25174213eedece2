"""Float weights -> GGUF blocks, for writing files.

The simple formats are those of ggml's reference quantisers, bit for bit; Q4_K and Q6_K search for their scales (quantise_k.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from hotset.errors import InputError
from hotset.quant.formats import FORMATS
from hotset.quant.layout import Bytes
from hotset.quant.nibbles import E2M1
from hotset.quant.q5_0 import pack_bits_of_32
from hotset.quant.quantise_k import quantise_q4_k, quantise_q6_k

Floats = NDArray[np.float32]
# Enough at once for NumPy's overhead, few enough for a processor's cache.
CHUNK = 1 << 16


def _inverse(d: Floats) -> Floats:
    """1 / d, and 0 for a block of zeros."""
    return np.where(d == 0, np.float32(0), np.float32(1) / np.where(d == 0, np.float32(1), d)).astype(np.float32)


def _halves(*values: Floats) -> Bytes:
    """One float16 of each [n, 1] -> bytes [n, 2 len(values)]."""
    return np.concatenate([v.astype("<f2") for v in values], axis=-1).view(np.uint8)


def _nibbles(q: NDArray[np.uint8]) -> Bytes:
    return np.asarray((q[:, :16] & 15) | (q[:, 16:] << 4), np.uint8)


def _symmetric(x: Floats, half: int) -> tuple[Floats, NDArray[np.uint8]]:
    """The number of largest magnitude becomes -half."""
    largest = np.take_along_axis(x, np.abs(x).argmax(-1)[:, None], axis=-1)
    d = largest / np.float32(-half)
    return d, np.trunc(x * _inverse(d) + np.float32(half + 0.5)).clip(0, 2 * half - 1).astype(np.uint8)


def _asymmetric(x: Floats, top: int) -> tuple[Floats, Floats, NDArray[np.uint8]]:
    """The least number becomes 0, the largest `top`."""
    low = x.min(-1, keepdims=True)
    d = (x.max(-1, keepdims=True) - low) / np.float32(top)
    return d, low, np.trunc((x - low) * _inverse(d) + np.float32(0.5)).clip(0, top).astype(np.uint8)


def _f32(x: Floats) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def _f16(x: Floats) -> Bytes:
    return x.astype("<f2").view(np.uint8)


def _bf16(x: Floats) -> Bytes:
    bits = x.view(np.uint32)
    rounded = (bits.astype(np.uint64) + (0x7FFF + (bits >> 16 & 1))) >> 16  # half to even
    quiet = bits >> 16 | 64
    return np.where(np.isnan(x), quiet, rounded).astype("<u2").view(np.uint8)


def _q4_0(x: Floats) -> Bytes:
    d, q = _symmetric(x, 8)
    return np.concatenate([_halves(d), _nibbles(q)], axis=-1)


def _q4_1(x: Floats) -> Bytes:
    d, low, q = _asymmetric(x, 15)
    return np.concatenate([_halves(d, low), _nibbles(q)], axis=-1)


def _q5_0(x: Floats) -> Bytes:
    d, q = _symmetric(x, 16)
    return np.concatenate([_halves(d), pack_bits_of_32(q >> 4), _nibbles(q)], axis=-1)


def _q5_1(x: Floats) -> Bytes:
    d, low, q = _asymmetric(x, 31)
    return np.concatenate([_halves(d, low), pack_bits_of_32(q >> 4), _nibbles(q)], axis=-1)


def _q8_0(x: Floats) -> Bytes:
    d = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    q = np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))
    return np.concatenate([_halves(d), q.astype(np.int8).view(np.uint8)], axis=-1)


def _mxfp4(x: Floats) -> Bytes:
    largest = np.abs(x).max(-1, keepdims=True)
    # The largest number is 6 = 1.5 * 2^2; twice the float is what the table holds.
    exponent = (
        np.where(largest > 0, np.floor(np.log2(np.maximum(largest, 1e-38))) + 125, 0).clip(0, 254).astype(np.uint8)
    )
    numbers = np.ldexp(np.array(E2M1, np.float32), exponent[..., None].astype(np.int32) - 128)
    q = np.abs(numbers - x[..., None]).argmin(-1).astype(np.uint8)
    return np.concatenate([exponent, _nibbles(q)], axis=-1)


QUANTISERS: dict[str, Callable[[Floats], Bytes]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "MXFP4": _mxfp4,
    "Q4_K": quantise_q4_k,
    "Q6_K": quantise_q6_k,
}


def quantise(name: str, values: Floats) -> Bytes:
    """Float32 [rows, cols] -> GGUF bytes uint8 [rows, row_bytes] of the format `name`, one of QUANTISERS.

    InputError where there is no such quantiser, where rows are no whole number of the format's blocks, and where a block is not finite.
    """
    if name not in QUANTISERS:
        raise InputError(f"format {name!r}: cannot be written; choose one of {', '.join(QUANTISERS)}")
    fmt = next(f for f in FORMATS.values() if f.name == name)
    rows, cols = values.shape
    if cols % fmt.block:
        raise InputError(f"{cols} columns are no multiple of {name}'s block of {fmt.block}; choose another format")
    if fmt.block > 1 and not np.isfinite(values).all():
        raise InputError(f"weights with NaN or infinity have no form in {name}; choose F32, F16 or BF16")
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, fmt.block)
    out = np.empty((len(blocks), fmt.block_bytes), np.uint8)
    for part in _parts(len(blocks), max(1, CHUNK // fmt.block)):
        out[part] = QUANTISERS[name](blocks[part])
    return out.reshape(rows, -1)


def _parts(n: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, n, size))
