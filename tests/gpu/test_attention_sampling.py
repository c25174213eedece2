from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from hotset.config import SamplingParams
from hotset.engine.sampling import sample
from hotset.kernels.attention import SplitBuffers, attention
from hotset.kernels.attention import reference as attention_reference
from hotset.kernels.kv_cache import KVCache, floats, quantised_reference
from hotset.kernels.rope import DeviceRope, qk_norm_rope_store
from hotset.kernels.rope import reference as rope_reference
from hotset.kernels.router import route as device_route
from hotset.kernels.rows import Rows
from hotset.kernels.sampler import ENDED, RUNNING, WAYS, Sampler
from hotset.kernels.token_mask import pack
from hotset.model.routing import RouterRule, route

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

N_CTX = 4200
DTYPES = (torch.float16, torch.float32, torch.int8)
LENGTHS = [1, 63, 64, 65, 1000, 2049, 4200, 33]


def rows_at(lengths, seqs=None):
    def ints(x):
        return torch.tensor(x, dtype=torch.int32, device="cuda")

    m = len(lengths)
    return Rows(ints([0] * m), ints(lengths) - 1, ints(seqs if seqs is not None else list(range(m))), ints([1] * m))


def kv_cache(n_kv, head_dim, dtype):
    generator = torch.Generator("cuda").manual_seed(0)
    values = [torch.randn(8, n_kv, N_CTX, head_dim, generator=generator, device="cuda") for _ in range(2)]
    (k, k_scale), (v, v_scale) = (
        quantised_reference(x) if dtype == torch.int8 else (x.to(dtype), None) for x in values
    )
    for seq, length in enumerate(LENGTHS):
        (k if k_scale is None else k_scale)[seq, :, length:] = float("nan")
        (v if v_scale is None else v_scale)[seq, :, length:] = float("nan")
    return KVCache(k, v, k_scale, v_scale)


def attend(q, cache, rows):
    buffers = SplitBuffers.empty(len(q), q.shape[1] // cache.head_dim, cache.head_dim, N_CTX, "cuda")
    out = torch.full_like(q, float("nan"))
    attention(q, cache, rows, cache.head_dim**-0.5, buffers, out)
    return out


@pytest.mark.parametrize(
    ("n_heads", "n_kv", "head_dim", "dtype"),
    [
        *product((32,), (4,), (128,), DTYPES),
        *product((64,), (8,), (64,), DTYPES),
        *product((16,), (16,), (128,), DTYPES),
        *product((6,), (2,), (80,), DTYPES[:2]),
        *product((6,), (2,), (96,), DTYPES[2:]),
        *product((5,), (1,), (192,), DTYPES),
    ],
)
def test_attention_equals_its_reference_and_rows_do_not_meet(n_heads, n_kv, head_dim, dtype):
    rows, cache = rows_at(LENGTHS), kv_cache(n_kv, head_dim, dtype)
    q = torch.randn(8, n_heads * head_dim, device="cuda")
    y, expected = attend(q, cache, rows), attention_reference(q, cache, rows, head_dim**-0.5)
    assert (y - expected).square().mean().sqrt() <= 1e-6 * expected.square().mean().sqrt()
    assert (y - expected).abs().max() <= 1e-5 * expected.abs().max()
    for r, length in enumerate(LENGTHS):
        assert torch.equal(attend(q[r : r + 1], cache, rows_at([length], [r]))[0], y[r])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_dim", "rope_dims"), [(128, 128), (80, 20)])
def test_rope_equals_its_reference(head_dim, rope_dims, neox, dtype):
    angles = torch.arange(N_CTX)[:, None] * 1e6 ** (-torch.arange(0, rope_dims, 2) / rope_dims)
    norms = [torch.rand(head_dim, device="cuda") + 0.5 for _ in range(2)]
    rope = DeviceRope(angles.cos().cuda(), angles.sin().cuda(), neox, *norms)
    cache = KVCache(*(torch.zeros(8, 4, N_CTX, head_dim, dtype=dtype, device="cuda") for _ in range(2)))
    rows = rows_at(LENGTHS)
    q, k, v = (torch.randn(8, n * head_dim, device="cuda") for n in (32, 4, 4))
    expected_q = rope_reference(q.view(8, 32, -1), rope, rope.q_norm, rows).flatten(1)
    expected_k = rope_reference(k.view(8, 4, -1), rope, rope.k_norm, rows)
    qk_norm_rope_store(q, k, v, rope, cache, rows)
    where = rows.seqs.long(), slice(None), rows.positions.long()
    torch.testing.assert_close(q.double(), expected_q, rtol=1e-5, atol=2e-6)
    tolerance = 1e-3 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(cache.k[where].double(), expected_k, rtol=tolerance, atol=2e-6)
    assert torch.equal(cache.v[where], v.view(8, 4, -1).to(dtype))


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_dim", "rope_dims"), [(128, 128), (64, 64), (96, 20)])
def test_keys_and_values_are_stored_in_blocks_of_int8(head_dim, rope_dims, neox):
    angles = torch.arange(N_CTX)[:, None] * 1e6 ** (-torch.arange(0, rope_dims, 2) / rope_dims)
    norms = [torch.rand(head_dim, device="cuda") + 0.5 for _ in range(2)]
    rope = DeviceRope(angles.cos().cuda(), angles.sin().cuda(), neox, *norms)
    shape = (8, 4, N_CTX, head_dim)
    scales = [torch.zeros(*shape[:3], head_dim // 32, dtype=torch.float16, device="cuda") for _ in range(2)]
    cache = KVCache(*(torch.zeros(shape, dtype=torch.int8, device="cuda") for _ in range(2)), *scales)
    rows = rows_at(LENGTHS)
    q, k, v = (torch.randn(8, n * head_dim, device="cuda") for n in (32, 4, 4))
    expected_q = rope_reference(q.view(8, 32, -1), rope, rope.q_norm, rows).flatten(1)
    expected_k = rope_reference(k.view(8, 4, -1), rope, rope.k_norm, rows)
    qk_norm_rope_store(q, k, v, rope, cache, rows)
    where = rows.seqs.long(), slice(None), rows.positions.long()
    torch.testing.assert_close(q.double(), expected_q, rtol=1e-5, atol=2e-6)
    for cells, scale, expected in (
        (cache.k, cache.k_scale, expected_k.float()),
        (cache.v, cache.v_scale, v.view(8, 4, -1)),
    ):
        whole, factor = quantised_reference(expected)
        assert (cells[where].int() - whole.int()).abs().max() <= 1
        torch.testing.assert_close(scale[where], factor, rtol=1e-3, atol=0)
        assert (floats(cells, scale)[where] - expected).norm() <= 0.01 * expected.norm()


@pytest.mark.parametrize(("n_experts", "k"), [(128, 8), (60, 4), (384, 8), (8, 8), (5, 1)])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_routes_equal_the_reference(n_experts, k, scoring):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, n_experts)).astype(np.float32)
    logits[1] = 0
    logits[2, 0] = np.nan
    rule = RouterRule(n_experts, k, scoring, scale=2.5)
    picks = torch.empty(8, k, dtype=torch.int32, device="cuda")
    weights = torch.empty(8, k, device="cuda")
    device_route(torch.from_numpy(logits).cuda(), rule, None, picks, weights)
    expected_picks, expected_weights = route(logits, rule)
    assert np.array_equal(picks.cpu(), expected_picks)
    np.testing.assert_allclose(weights.cpu(), expected_weights, rtol=1e-5)


def random_case(rng, n_vocab):
    logits = rng.normal(0, rng.choice([0.1, 1, 5]), n_vocab).astype(np.float32)
    if rng.random() < 0.5:
        logits = np.round(logits)  # ties
    logits[1:][rng.random(n_vocab - 1) < 0.1] = rng.choice([-np.inf, np.nan, -0.0])
    params = SamplingParams(
        temperature=float(rng.choice([0, 1e-5, 0.3, 0.8, 1, 2.5, 1e6])),
        top_k=int(rng.choice([0, 1, 7, 40, 1000])),
        top_p=float(rng.choice([0, 0.3, 0.9, 0.999, 1])),
        min_p=float(rng.choice([0, 0.02, 0.05, 0.4, 1])),
        repeat_penalty=float(rng.choice([1, 1.1, 0.7])),
        presence_penalty=float(rng.choice([0, 0.4])),
        frequency_penalty=float(rng.choice([0, 0.3, -0.1])),
        repeat_last_n=int(rng.choice([0, 5, 64, 200, 4096])),
        logit_bias={
            int(t): float(rng.choice([-np.inf, 2.5, -1])) for t in rng.integers(1, n_vocab, rng.integers(0, 9))
        },
    )
    return (
        logits,
        params,
        int(rng.integers(0, 2**64, dtype=np.uint64)),
        rng.integers(0, n_vocab, rng.integers(1, 300)).tolist(),
    )


@pytest.mark.parametrize(("n_vocab", "n_batches"), [(37, 300), (1000, 150), (5003, 60), (151_936, 8)])
def test_drawn_tokens_equal_the_reference(n_vocab, n_batches):
    rng, sampler = np.random.default_rng(n_vocab), Sampler(8, 8, n_vocab, "cuda")
    for _ in range(n_batches):
        cases = [random_case(rng, n_vocab) for _ in range(8)]
        allowed = rng.random(n_vocab) < rng.choice([0.01, 0.9])
        allowed[0] = True
        for seq, (_, params, seed, tokens) in enumerate(cases):
            sampler.start(seq, params, seed, tokens)
            sampler.set_mask(seq, pack(allowed) if seq % 2 else None)
        logits = torch.from_numpy(np.stack([x for x, *_ in cases])).cuda()
        expected = [
            sample(x, params, tokens, seed, len(tokens), pack(allowed) if seq % 2 else None)
            for seq, (x, params, seed, tokens) in enumerate(cases)
        ]
        for way in ("draw", "select"):
            rows = rows_at([len(tokens) for *_, tokens in cases])
            sampler.step(way, logits, rows)
            assert rows.tokens.tolist() == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_replayed_graph_draws_a_whole_text(way):
    n_vocab, n_steps, past = 5003, 30, [5, 6, 7]
    temperature = 0.0 if way == "greedy" else 1.0
    rng = np.random.default_rng(1)
    params = SamplingParams(temperature=temperature, repeat_penalty=1.5, repeat_last_n=8)
    source = torch.from_numpy(rng.normal(size=(n_steps, 1, n_vocab)).astype(np.float32)).cuda()
    logits, rows, sampler = torch.empty(1, n_vocab, device="cuda"), rows_at([3]), Sampler(1, 1, n_vocab, "cuda")
    sampler.step(way, logits.zero_(), rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampler.step(way, logits, rows)
    rows.positions.fill_(2)
    sampler.start(0, params, 3, past)
    for x in source:
        logits.copy_(x)
        graph.replay()
        past.append(sample(x[0].cpu().numpy(), params, past, 3, len(past)))
        assert rows.tokens.tolist() == past[-1:]
    assert rows.positions.tolist() == [len(past) - 1]
    assert sampler.done.tolist() == [RUNNING]


def test_end_tokens_raise_the_flag():
    sampler, rows = Sampler(2, 2, 300, "cuda"), rows_at([1, 1])
    for seq in range(2):
        sampler.start(seq, SamplingParams(temperature=0), 0, [0], [7, 299])
    sampler.greedy(torch.eye(300, device="cuda")[[299, 298]], rows)
    assert sampler.done.tolist() == [ENDED, RUNNING]
