"""Attention of a chunk in Triton's interpreter: against float64, behind poison, and with the bits of any other cut of the chunk."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotset.kernels.attention import reference
from hotset.kernels.chunk_attention import chunk_attention
from hotset.kernels.kv_cache import KVCache, quantised_reference
from hotset.kernels.rows import Rows
from hotset.kernels.tuning import AttentionTile, chunk_tuning_for

TUNING = replace(
    chunk_tuning_for(torch.device("cpu")),
    attention=AttentionTile(queries=16, keys=16, warps=4, stages=1, pipelined=False),
)


def rows(start: int, m: int, seq: int = 0) -> Rows:
    positions = torch.arange(start, start + m, dtype=torch.int32)
    return Rows(positions, positions, torch.full((m,), seq, dtype=torch.int32), torch.ones(m, dtype=torch.int32))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32))


def cache_of(n_stored: int, n_kv: int, n_ctx: int, head_dim: int, seq: int = 0) -> KVCache:
    """Keys and values of one sequence; all that is not stored is NaN."""
    k = torch.full((seq + 1, n_kv, n_ctx, head_dim), torch.nan, dtype=torch.float16)
    v = k.clone()
    k[seq, :, :n_stored] = normal(n_kv, n_stored, head_dim, seed=1).half()
    v[seq, :, :n_stored] = normal(n_kv, n_stored, head_dim, seed=2).half()
    return KVCache(k, v)


def q8_cache_of(n_stored: int, n_kv: int, n_ctx: int, head_dim: int, seq: int = 0) -> KVCache:
    """The same as int8; scales of what is not stored are NaN."""
    cache = cache_of(n_stored, n_kv, n_ctx, head_dim, seq)
    k, k_scale = quantised_reference(cache.k.float())
    v, v_scale = quantised_reference(cache.v.float())
    return KVCache(k, v, k_scale, v_scale)


def run(q: torch.Tensor, cache: KVCache, at: Rows) -> torch.Tensor:
    out = torch.full_like(q, torch.nan)
    chunk_attention(q, cache, at, cache.head_dim**-0.5, out, TUNING)
    return out


@pytest.mark.parametrize(
    ("start", "m", "n_heads", "n_kv", "head_dim"), [(0, 1, 2, 1, 64), (0, 37, 4, 2, 80), (29, 21, 2, 2, 96)]
)
def test_it_is_close_to_float64(start, m, n_heads, n_kv, head_dim):
    cache = cache_of(start + m, n_kv, start + m + 5, head_dim, seq=1)
    q = normal(m, n_heads * head_dim)
    at = rows(start, m, seq=1)
    expected = reference(q, cache, at, head_dim**-0.5)
    got = run(q, cache, at)
    assert (got - expected).norm() / expected.norm() < 1e-3
    assert (got - expected).abs().max() < 4e-3 * expected.abs().max()


@pytest.mark.parametrize(
    ("start", "m", "n_heads", "n_kv", "head_dim"), [(0, 1, 2, 1, 64), (0, 37, 4, 2, 32), (29, 21, 2, 2, 96)]
)
def test_it_is_close_to_float64_over_blocks_of_int8(start, m, n_heads, n_kv, head_dim):
    cache = q8_cache_of(start + m, n_kv, start + m + 5, head_dim, seq=1)
    q = normal(m, n_heads * head_dim)
    at = rows(start, m, seq=1)
    expected = reference(q, cache, at, head_dim**-0.5)
    got = run(q, cache, at)
    assert (got - expected).norm() / expected.norm() < 1e-3
    assert (got - expected).abs().max() < 4e-3 * expected.abs().max()
    mixed = KVCache(cache.k, cache_of(start + m, n_kv, start + m + 5, head_dim, seq=1).v, cache.k_scale)
    expected = reference(q, mixed, at, head_dim**-0.5)
    assert (run(q, mixed, at) - expected).norm() / expected.norm() < 1e-3


def test_rows_may_lie_in_a_wider_buffer():
    cache = cache_of(9, 1, 9, 64)
    wide = torch.full((9, 160), torch.nan)
    q = normal(9, 128)
    wide[:, :128] = q
    assert torch.equal(run(wide[:, :128], cache, rows(0, 9)), run(q, cache, rows(0, 9)))


def test_a_row_has_the_same_bits_in_any_chunk():
    q, cache = normal(41, 128), cache_of(41, 1, 48, 64)
    whole = run(q, cache, rows(0, 41))
    parts = [(0, 7), (7, 16), (23, 18)]
    assert torch.equal(torch.cat([run(q[at : at + m], cache, rows(at, m)) for at, m in parts]), whole)
    for i in (0, 15, 16, 40):
        later = KVCache(cache.k.clone(), cache.v.clone())
        later.k[:, :, i + 1 :] = torch.nan
        later.v[:, :, i + 1 :] = torch.nan
        assert torch.equal(run(q[i : i + 1], later, rows(i, 1))[0], whole[i])


def test_a_row_over_int8_has_the_same_bits_in_any_chunk():
    q, cache = normal(41, 128), q8_cache_of(41, 1, 48, 64)
    whole = run(q, cache, rows(0, 41))
    parts = [(0, 7), (7, 16), (23, 18)]
    assert torch.equal(torch.cat([run(q[at : at + m], cache, rows(at, m)) for at, m in parts]), whole)


def test_large_scores_do_not_overflow():
    cache = cache_of(20, 1, 20, 64)
    q = normal(20, 64) * 500
    assert torch.isfinite(run(q, cache, rows(0, 20))).all()
