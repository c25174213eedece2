"""Bit fiddling that several formats' NumPy references share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def bytes_of(words: NDArray[Any]) -> NDArray[np.uint8]:
    """Words [..., n] -> their bytes [..., n * itemsize], in memory order."""
    return np.ascontiguousarray(words).view(np.uint8)


def join_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes [..., n] -> low nibbles, then high nibbles [..., 2 n]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def nibbles_by_64(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The K formats' order: 32 bytes hold 64 elements, low nibbles first: [..., 128] -> [..., 256]."""
    return join_nibbles(packed.reshape(*packed.shape[:-1], -1, 32)).reshape(*packed.shape[:-1], -1)


def pairs_by_128(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The K formats' order of bit pairs: byte j of 32 serves elements j, j + 32, j + 64, j + 96: [..., 64] -> [..., 256]."""
    by_32 = packed.reshape(*packed.shape[:-1], -1, 1, 32)
    pairs = by_32 >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return np.asarray(pairs.reshape(*packed.shape[:-1], -1), np.uint8)


def unpack_six_bits(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Q4_K's and Q5_K's 12 bytes [..., 12] -> eight 6-bit scales and eight 6-bit minima [..., 8] (ggml: get_scale_min_k4)."""
    a, b, c = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = np.concatenate([a & 63, (c & 15) | ((a >> 6) << 4)], axis=-1)
    minimum = np.concatenate([b & 63, (c >> 4) | ((b >> 6) << 4)], axis=-1)
    return scale, minimum


def pack_six_bits(scale: NDArray[np.uint8], minimum: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of `unpack_six_bits`."""
    a = scale[..., :4] | ((scale[..., 4:] >> 4) << 6)
    b = minimum[..., :4] | ((minimum[..., 4:] >> 4) << 6)
    c = (scale[..., 4:] & 15) | ((minimum[..., 4:] & 15) << 4)
    return np.concatenate([a, b, c], axis=-1)


def scaled(d: NDArray[Any], q: NDArray[Any], offset: int) -> NDArray[np.float32]:
    """D (q - offset) in float32, as ggml's legacy formats have it."""
    return d.astype(np.float32) * (q.astype(np.float32) - np.float32(offset))


def scaled_with_minimum(fields: Any, q: NDArray[Any]) -> NDArray[np.float32]:
    """Q4_K and Q5_K: (d scale) q - (dmin minimum) per 32 elements, rounded after each step as ggml does; `block_scale` holds d, dmin."""
    d, dmin = (fields["block_scale"][..., i, None].astype(np.float32) for i in (0, 1))
    scale = (d * fields["scale"].astype(np.float32))[..., None]
    minimum = (dmin * fields["minimum"].astype(np.float32))[..., None]
    by_32 = q.reshape(*q.shape[:-1], 8, 32).astype(np.float32)
    return np.asarray((scale * by_32 - minimum).reshape(q.shape), np.float32)


def scaled_and_moved(fields: Any, q: NDArray[Any]) -> NDArray[np.float32]:
    """Q4_1 and Q5_1: d q + m, rounded after each step; `block_scale` holds d, m."""
    d, m = (fields["block_scale"][..., i, None].astype(np.float32) for i in (0, 1))
    return np.asarray(d * q.astype(np.float32) + m, np.float32)
