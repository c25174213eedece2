"""Weights of a softmax as integers: w(x) = floor(2^32 exp(x)) for x <= 0, equal to the last bit in NumPy and Triton.

Sums of integers do not depend on their order, so that cut-offs and draws agree between the host, any GPU and any block size.
exp is a polynomial in float32 without fused multiply-add, of a relative error below 2e-6; less than 2^-32 of the largest counts as nothing.
This file imports no Triton: the kernel is in sampling.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEIGHT_BITS = 32
# Sums stay exact in float64 too: 2^21 weights of at most 2^32.
MAX_VOCAB = 2**21
LOG2_E = 1.44269504
# exp(x) = 2^(k + f) with k = floor(x log2 e); 2^f = 1 + f (c0 + f (c1 + ...)), a least-squares fit on Chebyshev nodes.
COEFFICIENTS = (
    0.6931471824645996,
    0.24022722244262695,
    0.055495936423540115,
    0.009652440436184406,
    0.0012689352734014392,
    0.00020829190907534212,
)
# Here a weight is 0, and the exponent of 2^k still a float32's.
LOWEST = -40.0


def weights(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Logits less the largest, float32 [n] <= 0 -> int64 [n]; the reference of kernels/sampling.py."""
    y = np.maximum(x * np.float32(LOG2_E), np.float32(LOWEST))
    k = np.floor(y)
    f = y - k
    power = np.full_like(f, COEFFICIENTS[-1])
    for c in COEFFICIENTS[-2::-1]:
        power = power * f + np.float32(c)
    power = power * f + np.float32(1)
    scale = ((k.astype(np.int32) + (127 + WEIGHT_BITS)) << 23).view(np.float32)
    return np.asarray(power * scale).astype(np.int64)
