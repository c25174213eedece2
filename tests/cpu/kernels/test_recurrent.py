"""Convolutions and the gated delta rule against the host's kernels: rows of one sequence, of several, idle rows, and beginnings."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

from hotset.host import recurrent as host
from hotset.kernels.recurrent import convolve, delta_rule, gated_norm
from hotset.kernels.rows import Rows

# Two rows of sequence 1 in turn, one that begins anew in a used state, one idle.
POSITIONS, SEQS, MASK = [4, 5, 0, 9], [1, 1, 0, 2], [1, 1, 1, 0]
REAL = 3


def rows():
    return Rows(*torch.tensor([[0] * 4, POSITIONS, SEQS, MASK], dtype=torch.int32))


def where():
    return np.array(POSITIONS[:REAL]), np.array(SEQS[:REAL])


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("width", [2, 4])
def test_convolutions_are_those_of_the_host(gated, width):
    rng = np.random.default_rng(0)
    n = 150
    x, kernel = rng.standard_normal((4, 3 * n), np.float32), rng.standard_normal((n, width), np.float32)
    past = rng.standard_normal((3, n, width - 1), np.float32)
    state, out = torch.from_numpy(past.copy()), torch.full((4, n), torch.nan)
    convolve(torch.from_numpy(x), torch.from_numpy(kernel), state, rows(), out, gated=gated)
    expected, inner = np.empty((REAL, n), np.float32), x[:REAL, :n]
    if gated:
        inner = inner * x[:REAL, 2 * n :]
    host.convolve(inner, kernel, np.empty(0, np.float32), not gated, past, *where(), expected)
    if gated:
        expected *= x[:REAL, n : 2 * n]
    np.testing.assert_allclose(out[:REAL].numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.numpy(), past, rtol=1e-6)
    assert out[REAL].isnan().all()


@pytest.mark.parametrize("interleaved", [True, False])
def test_the_delta_rule_is_that_of_the_host(interleaved):
    rng = np.random.default_rng(1)
    n, n_key, dk, dv, eps = 4, 2, 12, 40, 1e-6
    mixed = rng.standard_normal((4, 2 * n_key * dk + n * dv), np.float32)
    beta, alpha = rng.standard_normal((2, 4, n + 12), np.float32)
    shift, decay = rng.standard_normal(n, np.float32), -rng.random(n, np.float32)
    memory = rng.standard_normal((3, n, dk, dv), np.float32)
    state, out = torch.from_numpy(memory.copy()), torch.full((4, n * dv), torch.nan)
    tensors = (torch.from_numpy(t) for t in (mixed, beta, alpha, shift, decay))
    delta_rule(*tensors, state, rows(), out, n_key_heads=n_key, interleaved=interleaved, eps=eps)
    q, k, v = (np.ascontiguousarray(t) for t in np.split(mixed[:REAL], [n_key * dk, 2 * n_key * dk], 1))
    for t in (q, k):
        host.unit_heads(t, n_key, dk, eps)
    fade = np.exp(np.logaddexp(np.float32(0), alpha[:REAL, :n] + shift) * decay)
    expected = np.empty((REAL, n * dv), np.float32)
    weight = 1 / (1 + np.exp(-beta[:REAL, :n]))
    host.delta_rule(q, k, v, weight, fade, n // n_key, interleaved, memory, *where(), expected)
    np.testing.assert_allclose(out[:REAL].numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.numpy(), memory, rtol=1e-4, atol=1e-5)
    assert out[REAL].isnan().all()


def test_heads_are_normed_and_gated():
    torch.manual_seed(0)
    x, z, weight = torch.randn(3, 5 * 12), torch.randn(3, 5 * 12 + 4), torch.rand(12)
    heads = x.clone().view(3, 5, 12)
    expected = heads * (heads.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    expected = expected.view(3, -1) * torch.nn.functional.silu(z[:, :60])
    gated_norm(x, z, weight, 1e-5)
    torch.testing.assert_close(x, expected)
