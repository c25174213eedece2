"""What carries a state from position to position: causal convolutions and the gated delta rule, one position after the other.

A row of position 0 starts from zeros, so that a sequence begins anew whatever the state held. Rows are taken in order, and each row's
result depends on its own sequence alone.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from hotset.host.activation import exp32
from hotset.host.compile import compiled


@compiled(parallel=True)
def convolve(x: Any, kernel: Any, bias: Any, silu: bool, state: Any, positions: Any, sequences: Any, out: Any) -> None:
    """out[r, c] = sum_j kernel[c, j] x[r - width + 1 + j, c] (+ bias[c]), through silu if asked: each channel over its sequence's last positions.

    x float32 [m, >= C], kernel [C, width], bias [C] or [0], state [n_seqs, C, width - 1] (oldest first), out [m, C].
    """
    n, width = kernel.shape
    for c in numba.prange(n):
        for r in range(positions.size):
            past = state[sequences[r], c]
            if positions[r] == 0:
                past[:] = np.float32(0)
            total = np.float32(0)
            for j in range(width - 1):
                total += kernel[c, j] * past[j]
            total += kernel[c, width - 1] * x[r, c]
            if bias.size:
                total += bias[c]
            for j in range(width - 2):
                past[j] = past[j + 1]
            if width > 1:
                past[width - 2] = x[r, c]
            out[r, c] = total / (np.float32(1) + exp32(-total)) if silu else total


@compiled(inline=True)
def _unit(x: Any, eps: float) -> None:
    """X / max(|x|, eps), in place."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    scale = np.float32(1.0 / max(math.sqrt(total), eps))
    for i in range(x.size):
        x[i] *= scale


@compiled(parallel=True)
def unit_heads(rows: Any, n: int, head: int, eps: float) -> None:
    """Each of the first n heads of every row to length 1, in place."""
    for r in numba.prange(rows.shape[0]):
        for i in range(n):
            _unit(rows[r, i * head : (i + 1) * head], eps)


@compiled(parallel=True)
def delta_rule(
    q: Any, k: Any, v: Any, beta: Any, decay: Any, group: int, interleaved: bool, state: Any, positions: Any, sequences: Any, out: Any
) -> None:  # fmt: skip
    """S = decay S + k (beta (v - decay S^T k))^T, out = S^T q / sqrt(d_key), for each value head (Yang et al. 2024).

    q, k float32 [m, n_key_heads * d_key], v and out [m, n * d_value], beta and decay [m, n], state [n_seqs, n, d_key, d_value]. Value
    heads share key heads: neighbours do if `interleaved`, `group` of them, else every n / group-th one.
    """
    n, d_key, d_value = state.shape[1], state.shape[2], state.shape[3]
    n_key = n // group
    scale = np.float32(1.0 / math.sqrt(d_key))
    for h in numba.prange(n):
        kh = h // group if interleaved else h % n_key
        memory = np.empty(d_value, np.float32)
        for r in range(positions.size):
            s = state[sequences[r], h]
            if positions[r] == 0:
                s[:, :] = np.float32(0)
            key, query = k[r, kh * d_key :], q[r, kh * d_key :]
            fade = decay[r, h]
            memory[:] = np.float32(0)
            for i in range(d_key):
                for j in range(d_value):
                    s[i, j] *= fade
                    memory[j] += s[i, j] * key[i]
            for j in range(d_value):
                memory[j] = (v[r, h * d_value + j] - memory[j]) * beta[r, h]
            target = out[r, h * d_value : (h + 1) * d_value]
            target[:] = np.float32(0)
            for i in range(d_key):
                for j in range(d_value):
                    s[i, j] += key[i] * memory[j]
                    target[j] += s[i, j] * (query[i] * scale)
