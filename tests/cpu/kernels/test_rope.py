from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from hotset.kernels.kv_cache import KVCache, floats, quantised_reference
from hotset.kernels.rope import DeviceRope, qk_norm_rope_store, reference
from hotset.kernels.rows import Rows

N_CTX, N_HEADS, N_KV = 9, 3, 2


def device_rope(head_dim, rope_dims, neox=True, norm=True):
    angles = torch.arange(N_CTX)[:, None] * 10_000.0 ** (-torch.arange(0, rope_dims, 2) / rope_dims)
    torch.manual_seed(1)
    norms = (torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5) if norm else (None, None)
    return DeviceRope(angles.cos(), angles.sin(), neox, *norms, eps=1e-5)


def some_rows(mask=(1, 1, 1)):
    positions, seqs = [0, 8, 3], [1, 0, 1]
    return Rows(*(torch.tensor(x, dtype=torch.int32) for x in ([0, 0, 0], positions, seqs, mask)))


def heads(head_dim, pad=0):
    torch.manual_seed(2)
    q = torch.randn(3, N_HEADS * head_dim)
    kv = torch.randn(3, 2 * N_KV * head_dim + pad)
    return q, kv[:, : N_KV * head_dim], kv[:, N_KV * head_dim : 2 * N_KV * head_dim]


def poisoned_cache(head_dim, dtype=torch.float32):
    return KVCache(*(torch.full((2, N_KV, N_CTX, head_dim), float("nan"), dtype=dtype) for _ in range(2)))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_dim", "rope_dims"), [(16, 16), (80, 20), (96, 96)])
def test_q_is_turned_and_k_and_v_are_stored(head_dim, rope_dims, neox, norm):
    rope, rows, cache = device_rope(head_dim, rope_dims, neox, norm), some_rows(), poisoned_cache(head_dim)
    q, k, v = heads(head_dim, pad=5)
    expected_q = reference(q.view(3, -1, head_dim), rope, rope.q_norm, rows)
    expected_k = reference(k.reshape(3, -1, head_dim), rope, rope.k_norm, rows)
    qk_norm_rope_store(q, k, v, rope, cache, rows)
    where = rows.seqs.long(), slice(None), rows.positions.long()
    torch.testing.assert_close(q.view(3, -1, head_dim).double(), expected_q, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cache.k[where].double(), expected_k, rtol=1e-5, atol=1e-6)
    assert torch.equal(cache.v[where], v.reshape(3, N_KV, head_dim))
    assert cache.k.isfinite().sum() == cache.v.isfinite().sum() == 3 * N_KV * head_dim


def test_position_zero_turns_nothing():
    rope, cache = device_rope(16, 16, norm=False), poisoned_cache(16)
    q, k, v = heads(16)
    before = q.clone()
    qk_norm_rope_store(q, k, v, rope, cache, some_rows())
    assert torch.equal(q[0], before[0])
    assert not torch.equal(q[1], before[1])


def test_both_pairings_differ_only_in_the_order_of_values():
    q, k, v = heads(16)
    order = torch.arange(16).view(2, 8).T.flatten()
    neighbours = q.view(3, N_HEADS, 16)[..., order].reshape(3, -1).contiguous()
    qk_norm_rope_store(q, k, v, device_rope(16, 16, norm=False), poisoned_cache(16), some_rows())
    qk_norm_rope_store(neighbours, k, v, device_rope(16, 16, neox=False, norm=False), poisoned_cache(16), some_rows())
    assert torch.equal(q.view(3, N_HEADS, 16)[..., order].reshape(3, -1), neighbours)


def test_padded_rows_store_nothing_and_stay_as_they_are():
    cache, rows = poisoned_cache(16), some_rows(mask=(1, 0, 1))
    q, k, v = heads(16)
    before = q.clone()
    qk_norm_rope_store(q, k, v, device_rope(16, 16), cache, rows)
    assert cache.k[0].isnan().all()
    assert cache.v[0].isnan().all()
    assert torch.equal(q[1], before[1])


def test_a_float16_cache_holds_the_rounded_values():
    single, half = poisoned_cache(16), poisoned_cache(16, torch.float16)
    for cache in (single, half):
        qk_norm_rope_store(*heads(16), device_rope(16, 16), cache, some_rows())
    assert torch.equal(single.k.half().view(torch.int16), half.k.view(torch.int16))
    assert torch.equal(single.v.half().view(torch.int16), half.v.view(torch.int16))


def q8_cache(head_dim):
    cells = [torch.full((2, N_KV, N_CTX, head_dim), 77, dtype=torch.int8) for _ in range(2)]
    scales = [torch.full((2, N_KV, N_CTX, head_dim // 32), float("nan"), dtype=torch.float16) for _ in range(2)]
    return KVCache(*cells, *scales)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_dim", "rope_dims"), [(32, 32), (96, 96), (64, 20), (160, 64)])
def test_keys_and_values_are_stored_in_blocks_of_int8(head_dim, rope_dims, neox, norm):
    rope, rows, cache = device_rope(head_dim, rope_dims, neox, norm), some_rows(), q8_cache(head_dim)
    q, k, v = heads(head_dim, pad=5)
    plain, same_q = poisoned_cache(head_dim), q.clone()
    qk_norm_rope_store(same_q, k, v, rope, plain, rows)
    qk_norm_rope_store(q, k, v, rope, cache, rows)
    assert torch.equal(q, same_q)
    where = rows.seqs.long(), slice(None), rows.positions.long()
    for cells, scale, kept in ((cache.v, cache.v_scale, plain.v), (cache.k, cache.k_scale, plain.k)):
        expected, expected_scale = quantised_reference(kept[where])
        # Keys are normed in another order of sums here.
        assert (cells[where].int() - expected.int()).abs().max() <= (1 if kept is plain.k else 0)
        assert torch.allclose(scale[where].float(), expected_scale.float(), rtol=1e-3)
        assert (floats(cells, scale)[where] - kept[where]).norm() < 0.01 * kept[where].norm()
    assert cache.k_scale.isfinite().sum() == cache.v_scale.isfinite().sum() == 3 * N_KV * head_dim // 32
    assert (cache.k == 77).sum() >= (18 - 3) * N_KV * head_dim


def test_blocks_of_int8_round_half_to_even_and_what_is_not_finite_shows():
    cache, rows = q8_cache(64), some_rows(mask=(1, 1, 0))
    q, k, v = heads(64)
    v = v.clone()
    v[0, :32] = torch.tensor([127.0, 2.5, 3.5, -2.5, 0.4] + [0.0] * 27)
    v[0, 32:64] = 0
    v[0, 65], v[0, 97] = float("nan"), float("inf")
    qk_norm_rope_store(q, k, v, device_rope(64, 64), cache, rows)
    assert cache.v[1, 0, 0, :5].tolist() == [127, 2, 4, -2, 0]
    assert cache.v_scale[1, 0, 0].tolist() == [1, 0]
    assert cache.v[1, 0, 0, 32:].tolist() == [0] * 32
    assert not cache.v_scale[1, 1, 0].isfinite().any()
    assert cache.v_scale[1, :, 3].isnan().all()
