"""Philox4x32-10 (Salmon et al., SC 2011): random words as a pure function of a counter and a key.

A draw depends on the request's seed, the token's position and the index of the draw, never on what was drawn before or elsewhere.
Triton's own `tl.philox` gives the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

ROUNDS = 10
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter: ArrayLike, key: ArrayLike) -> NDArray[np.uint32]:
    """Counters [..., 4] and keys [..., 2] of 32-bit words -> random words uint32 [..., 4]."""
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    k0, k1 = np.moveaxis(np.asarray(key, np.uint64), -1, 0)
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1 & LOW, (p0 >> HALF) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), -1).astype(np.uint32)


def uniform(seed: int, position: int, draw: int = 0) -> np.float32:
    """Draw a float32 in [0, 1), a multiple of 2^-24: key = the 64-bit seed, counter = (position low, position high, draw, 0)."""
    word = philox([*words(position), draw, 0], words(seed))[0]
    return np.float32(word >> np.uint32(8)) * np.float32(2**-24)


def words(n: int) -> tuple[int, int]:
    """Cut a 64-bit number into its low and high 32-bit words."""
    return n & 0xFFFFFFFF, n >> 32 & 0xFFFFFFFF
