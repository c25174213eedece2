from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from hotset.kernels.attention import SPLIT, Span, SplitBuffers, attention, reference
from hotset.kernels.kv_cache import KVCache, quantised_reference
from hotset.kernels.rows import Rows

N_CTX = 300


def rows_at(lengths, seqs=None, mask=None):
    m = len(lengths)
    return Rows(
        tokens=torch.zeros(m, dtype=torch.int32),
        positions=torch.tensor(lengths, dtype=torch.int32) - 1,
        seqs=torch.tensor(seqs if seqs is not None else range(m), dtype=torch.int32),
        row_mask=torch.tensor(mask or [1] * m, dtype=torch.int32),
    )


# Types of keys and of values.
TYPES = [
    (torch.float16,) * 2,
    (torch.float32,) * 2,
    (torch.int8,) * 2,
    (torch.int8, torch.float16),
    (torch.float16, torch.int8),
]
PURE = TYPES[:3]


def kv_cache(n_seqs, n_kv, head_dim, types=(torch.float32,) * 2, n_ctx=N_CTX):
    torch.manual_seed(0)
    cells = []
    for dtype in types:
        x = torch.randn(n_seqs, n_kv, n_ctx, head_dim)
        cells.append(quantised_reference(x) if dtype == torch.int8 else (x.to(dtype), None))
    (k, k_scale), (v, v_scale) = cells
    return KVCache(k, v, k_scale, v_scale)


def poison_beyond(cache, rows):
    for seq, position in zip(rows.seqs.tolist(), rows.positions.tolist(), strict=True):
        for cells, scale in ((cache.k, cache.k_scale), (cache.v, cache.v_scale)):
            (cells if scale is None else scale)[seq, :, position + 1 :] = float("nan")


def attend(q, cache, rows, n_ctx=N_CTX, span=Span()):  # noqa: B008
    n_heads = q.shape[1] // cache.head_dim
    buffers = SplitBuffers.empty(len(q), n_heads, cache.value_dim, n_ctx, "cpu")
    for buffer in (buffers.peak, buffers.mass, buffers.part):
        buffer.fill_(float("nan"))
    out = torch.full((len(q), n_heads * cache.value_dim), float("nan"))
    attention(q, cache, rows, cache.head_dim**-0.5, buffers, out, span)
    return out


def assert_close(y, expected, max_rel=1e-5, rms_rel=1e-6):
    error, scale = (y.double() - expected).abs(), expected.square().mean().sqrt()
    assert error.max() <= max_rel * expected.abs().max(), f"largest error {error.max()} at {error.argmax()}"
    assert error.square().mean().sqrt() <= rms_rel * scale


@pytest.mark.parametrize("types", TYPES[:2], ids=str)
@pytest.mark.parametrize(("n_heads", "n_kv", "head_dim"), [(2, 2, 80), (3, 1, 96), (4, 2, 16), (2, 1, 192)])
def test_it_equals_softmax_attention(n_heads, n_kv, head_dim, types):
    rows, cache = rows_at([1, 129]), kv_cache(2, n_kv, head_dim, types)
    q = torch.randn(2, n_heads * head_dim)
    assert_close(attend(q, cache, rows), reference(q, cache, rows, head_dim**-0.5))


@pytest.mark.parametrize("types", TYPES[2:], ids=str)
@pytest.mark.parametrize(("n_heads", "n_kv", "head_dim"), [(2, 2, 64), (3, 1, 96), (4, 2, 32), (2, 1, 192)])
def test_it_equals_softmax_attention_over_blocks_of_int8(n_heads, n_kv, head_dim, types):
    rows, cache = rows_at([1, 129]), kv_cache(2, n_kv, head_dim, types)
    q = torch.randn(2, n_heads * head_dim)
    assert_close(attend(q, cache, rows), reference(q, cache, rows, head_dim**-0.5))


@pytest.mark.parametrize("types", PURE, ids=str)
def test_lengths_around_a_split_read_nothing_beyond_themselves(types):
    rows, cache = rows_at([1, 63, 64, 65, 255, 256, 257, 300]), kv_cache(8, 1, 32, types)
    poison_beyond(cache, rows)
    q = torch.randn(8, 2 * 32)
    assert_close(attend(q, cache, rows), reference(q, cache, rows, 32**-0.5))


@pytest.mark.parametrize("types", PURE, ids=str)
def test_a_row_alone_has_the_bits_that_it_has_among_others(types):
    rows, cache = rows_at([257, 3, 130], seqs=[2, 0, 1]), kv_cache(3, 2, 32, types)
    q = torch.randn(3, 4 * 32)
    together = attend(q, cache, rows)
    for r in range(3):
        alone = attend(q[r : r + 1], cache, rows_at([int(rows.positions[r]) + 1], seqs=[int(rows.seqs[r])]))
        assert torch.equal(alone[0], together[r])


def test_successive_rows_of_one_sequence_each_see_their_own_past():
    rows, cache = rows_at([126, 127, 128, 129], seqs=[0] * 4), kv_cache(1, 1, 16)
    q = torch.randn(4, 16)
    assert_close(attend(q, cache, rows), reference(q, cache, rows, 0.25))


def test_the_size_of_the_kv_cache_does_not_change_a_bit():
    cache = kv_cache(1, 1, 16, n_ctx=SPLIT + 1)
    large = KVCache(*(torch.full((1, 1, 5 * SPLIT, 16), float("nan")) for _ in range(2)))
    large.k[:, :, : SPLIT + 1], large.v[:, :, : SPLIT + 1] = cache.k, cache.v
    q, rows = torch.randn(1, 16), rows_at([SPLIT + 1])
    assert torch.equal(attend(q, cache, rows, SPLIT + 1), attend(q, large, rows, 5 * SPLIT))


def test_padded_rows_write_nothing():
    rows, cache = rows_at([5, 5], mask=[0, 1]), kv_cache(2, 1, 16)
    out = attend(torch.randn(2, 16), cache, rows)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_large_scores_do_not_overflow():
    rows, cache = rows_at([140]), kv_cache(1, 1, 16)
    q = torch.randn(1, 16) * 1e4
    assert_close(attend(q, cache, rows), reference(q, cache, rows, 0.25), max_rel=1e-3, rms_rel=1e-3)


@pytest.mark.parametrize(
    "span",
    [
        Span(window=24),
        Span(window=SPLIT),
        Span(chunk=100),
        Span(softcap=2.0),
        Span(sinks=torch.tensor([-1.0, 0.5, 3.0, 50.0])),
        Span(window=3, softcap=5.0, sinks=torch.zeros(4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("types", PURE, ids=str)
def test_windows_chunks_softcaps_and_sinks(span, types):
    rows, cache = rows_at([1, 129, 300]), kv_cache(3, 2, 32, types)
    for seq, position in enumerate(rows.positions.tolist()):
        for cells, scale in ((cache.k, cache.k_scale), (cache.v, cache.v_scale)):
            (cells if scale is None else scale)[seq, :, : span.first(position)] = float("nan")
    poison_beyond(cache, rows)
    q = torch.randn(3, 4 * 32)
    assert_close(attend(q, cache, rows, span=span), reference(q, cache, rows, 32**-0.5, span), rms_rel=2e-6)


def test_values_may_be_narrower_than_keys():
    rows, cache = rows_at([70, 2]), kv_cache(2, 1, 40)
    cache = KVCache(cache.k, cache.v[..., :24].contiguous())
    q = torch.randn(2, 3 * 40)
    assert_close(attend(q, cache, rows), reference(q, cache, rows, 40**-0.5))
