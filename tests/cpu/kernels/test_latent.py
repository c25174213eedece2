"""Attention over latents against float64: odd sizes, heads off sixteen, both pairings, idle rows, and poison beyond a row's past."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from hotset.kernels.attention import SplitBuffers
from hotset.kernels.kv_cache import floats, quantised_reference
from hotset.kernels.latent import LatentCache, LatentRope, latent_attention, prepare_latent, reference
from hotset.kernels.rope import DeviceRope
from hotset.kernels.rope import reference as turned
from hotset.kernels.rows import Rows

N_CTX, RANK, ROPE, NOPE, N_HEADS = 70, 24, 8, 12, 5
WIDE = 32


def rows_at(positions, mask=None):
    n = len(positions)
    table = [[0] * n, positions, list(range(n)), mask or [1] * n]
    return Rows(*torch.tensor(table, dtype=torch.int32))


def test_latents_in_q8_0_are_read_as_they_were_stored():
    torch.manual_seed(2)
    rows = rows_at([0, 40])
    data, scale = quantised_reference(torch.randn(2, N_CTX, 3 * WIDE))
    cache = LatentCache(data, 2 * WIDE, scale)
    kv, angles = torch.randn(2, 3 * WIDE), torch.zeros(N_CTX, WIDE // 2)
    rope = LatentRope(angles.cos(), angles.sin(), False, torch.ones(2 * WIDE), 1e-5)
    plain, pairs = torch.empty(2 * N_HEADS, NOPE), torch.empty(2 * N_HEADS, WIDE)
    prepare_latent(torch.randn(2, N_HEADS * (NOPE + WIDE)), kv, rope, cache, rows, plain, pairs)
    stored = floats(data, scale)[[0, 1], [0, 40]].float()
    latent = kv[:, : 2 * WIDE] * (kv[:, : 2 * WIDE].square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(stored, torch.cat([latent, kv[:, 2 * WIDE :]], 1), rtol=0, atol=0.02)
    latents, out = torch.randn(2 * N_HEADS, 2 * WIDE), torch.full((2, N_HEADS * 2 * WIDE), torch.nan)
    buffers = SplitBuffers.empty(2, N_HEADS, 2 * WIDE, N_CTX, "cpu")
    latent_attention(latents, pairs, cache, rows, 0.1, buffers, out)
    assert (out - reference(latents, pairs, cache, rows, 0.1).float()).abs().max() < 1e-4


def make_cache(n_seqs, dtype):
    return LatentCache(torch.full((n_seqs, N_CTX, RANK + ROPE), torch.nan, dtype=dtype), RANK)


@pytest.mark.parametrize("neox", [True, False])
def test_latents_are_normed_and_keys_turned_where_they_are_stored(neox):
    torch.manual_seed(0)
    rows = rows_at([3, 69, 0], mask=[1, 1, 0])
    cache = make_cache(3, torch.float32)
    q, kv = torch.randn(3, N_HEADS * (NOPE + ROPE) + 12), torch.randn(3, RANK + ROPE + 16)
    angles = torch.rand(N_CTX, ROPE // 2)
    weight = torch.rand(RANK) + 0.5
    rope = LatentRope(angles.cos(), angles.sin(), neox, weight, 1e-5)
    plain, pairs = torch.full((3 * N_HEADS, NOPE), torch.nan), torch.full((3 * N_HEADS, ROPE), torch.nan)
    prepare_latent(q, kv, rope, cache, rows, plain, pairs)
    heads = q[:, : N_HEADS * (NOPE + ROPE)].view(3, N_HEADS, -1)
    tables = DeviceRope(rope.cos, rope.sin, neox=neox)
    torch.testing.assert_close(plain.view(3, N_HEADS, -1)[:2], heads[:2, :, :NOPE])
    expected = turned(heads[..., NOPE:], tables, None, rows).float()
    torch.testing.assert_close(pairs.view(3, N_HEADS, -1)[:2], expected[:2])
    latent = kv[:, :RANK]
    latent = latent * (latent.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    key = turned(kv[:, None, RANK : RANK + ROPE], tables, None, rows)[:, 0].float()
    for row, position in ((0, 3), (1, 69)):
        torch.testing.assert_close(cache.data[row, position], torch.cat([latent[row], key[row]]))
    assert cache.data[2].isnan().all()


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float16, 1e-5)])
def test_attention_is_that_of_float64_and_sees_nothing_beyond_its_row(dtype, limit):
    torch.manual_seed(1)
    positions = [0, 5, 69]
    rows, cache = rows_at(positions), make_cache(3, dtype)
    for s, p in enumerate(positions):
        cache.data[s, : p + 1] = torch.randn(p + 1, RANK + ROPE).to(dtype)
    latent, pairs = torch.randn(3 * N_HEADS, RANK + 8), torch.randn(3 * N_HEADS, ROPE)
    out = torch.full((3, N_HEADS * RANK), torch.nan)
    buffers = SplitBuffers.empty(3, N_HEADS, RANK, N_CTX, "cpu")
    latent_attention(latent, pairs, cache, rows, 0.2, buffers, out)
    expected = reference(latent, pairs, cache, rows, 0.2).float()
    assert (out - expected).abs().max() < limit * 10
