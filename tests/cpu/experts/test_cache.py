from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from hotset.experts.cache import POISON, ExpertCache
from hotset.experts.heat import first_scores
from hotset.experts.host_cache import HostCache
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape
from hotset.experts.stats import Prefetched
from hotset.kernels.guess import MISSED

SHAPE = CacheShape((512, 256), (12, 9), (4, 5), k=3, max_rows=2)


def make_bank():
    # Every span names its layer and expert in all its bytes, first to last.
    return [
        torch.stack([torch.full((span,), layer * 100 + e, dtype=torch.uint8) for e in range(n_experts)])
        for layer, (span, n_experts) in enumerate(zip(SHAPE.span_bytes, SHAPE.n_experts, strict=True))
    ]


def make_cache(bank, setting="lrfu:16", **options):
    return ExpertCache(
        SHAPE, Policy.parse(setting), [spans.data_ptr() for spans in bank], "cpu", poison=True, **options
    )


def bytes_at(address, n):
    return np.frombuffer((ctypes.c_uint8 * n).from_address(address), np.uint8)


def history(n):
    rng = np.random.default_rng(6)
    for step in range(n):
        rows = 1 + step % 2
        mask = np.ones(rows, np.int32)
        mask[1:] = rng.random(rows - 1) < 0.6
        yield mask, [np.array([rng.permutation(e)[:3] for _ in range(rows)], np.int32) for e in SHAPE.n_experts]


def play(cache, n):
    for mask, layers in history(n):
        for layer, picks in enumerate(layers):
            cache.lookup(layer, torch.from_numpy(picks), torch.from_numpy(mask))
            cache.fetch(layer)
            yield layer, picks, mask


@pytest.mark.parametrize("setting", ["lrfu:16", "static"])
def test_every_address_leads_to_the_whole_span_of_its_expert(setting):
    # CASES row 41: weights, scales and biases of an expert move as one; the address buffer itself stays in place.
    bank = make_bank()
    cache = make_cache(bank, setting)
    place = cache.address.data_ptr()
    for layer, picks, mask in play(cache, 10):
        addresses = cache.address[: picks.size].view(picks.shape).tolist()
        for row in np.flatnonzero(mask):
            for e, address in zip(picks[row], addresses[row], strict=True):
                assert np.all(bytes_at(address, SHAPE.span_bytes[layer]) == layer * 100 + e)
        cache.state(layer).check()
    assert cache.address.data_ptr() == place


def test_padded_rows_have_no_address():
    # The expert kernels skip address 0, so a padded row reads nothing; what an earlier request left must not show.
    cache = make_cache(make_bank())
    picks = torch.tensor([[0, 1, 2], [5, 4, 3]], dtype=torch.int32)
    assert torch.all(cache.lookup(0, picks, torch.tensor([1, 1], dtype=torch.int32)) != 0)
    address = cache.lookup(0, picks, torch.tensor([1, 0], dtype=torch.int32))
    assert torch.all(address[:3] != 0)
    assert address[3:].tolist() == [0, 0, 0]


def test_slots_hold_poison_until_they_are_filled():
    cache = make_cache(make_bank())
    cache.lookup(0, torch.tensor([[0, 1, 2]], dtype=torch.int32), torch.ones(1, dtype=torch.int32))
    assert np.all(bytes_at(int(cache.address[0]), SHAPE.span_bytes[0]) == POISON)


def test_device_and_host_caches_report_the_same():
    cache = make_cache(make_bank(), ring_steps=4)
    host = HostCache(SHAPE, Policy(), ring_steps=4)
    for layer, picks, mask in play(cache, 7):
        host.lookup(layer, picks, mask)
    assert cache.stats() == host.stats()
    assert np.array_equal(cache.recorded_picks(), host.recorded_picks())


def test_seeded_spans_are_brought_in():
    bank = make_bank()
    cache = make_cache(bank)
    cache.seed(1, [7, 2])
    assert cache.state(1).expert_of_slot.tolist() == [7, 2, -1, -1, -1]
    cache.lookup(1, torch.tensor([[2, 7, 0]], dtype=torch.int32), torch.ones(1, dtype=torch.int32))
    assert [bytes_at(a, 256)[-1] for a in cache.address[:2].tolist()] == [102, 107]
    assert cache.stats().hits == (0, 2)


@pytest.mark.parametrize("setting", ["lrfu:16", "product", "lru", "lfu"])
def test_both_caches_begin_alike_from_given_experts_and_scores(setting):
    cache, host = make_cache(make_bank(), setting), HostCache(SHAPE, Policy.parse(setting))
    for c in (cache, host):
        for layer, n_experts in enumerate(SHAPE.n_experts):
            share = np.arange(n_experts) / sum(range(n_experts))
            c.start_from(layer, range(3), first_scores(c.policy, share, SHAPE.k))
    for layer, picks, mask in play(cache, 7):
        host.lookup(layer, picks, mask)
    assert cache.stats() == host.stats()
    (ours, steps), (theirs, other_steps) = cache.scores(), host.scores()
    assert steps.tolist() == other_steps.tolist()
    for a, b in zip(ours, theirs, strict=True):
        assert a.tobytes() == b.tobytes()


def test_reset_stats_keeps_residency_and_reset_forgets_it():
    cache = make_cache(make_bank(), ring_steps=2)
    picks, mask = torch.tensor([[0, 1, 2]], dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    cache.lookup(0, picks, mask)
    cache.reset_stats()
    cache.lookup(0, picks, mask)
    assert (cache.stats().hits, cache.stats().misses) == ((3, 0), (0, 0))
    cache.reset()
    assert len(cache.recorded_picks()) == 0
    cache.lookup(0, picks, mask)
    assert (cache.stats().hits, cache.stats().misses) == ((0, 0), (3, 0))


def test_experts_that_come_ahead_are_counted_and_change_nothing():
    bank = make_bank()
    plain, ahead = make_cache(bank, prefetch=None), make_cache(bank)
    steps = zip(play(plain, 40), play(ahead, 40), strict=True)
    for (layer, picks, mask), _ in steps:
        assert torch.equal(plain._buffers.slot_of, ahead._buffers.slot_of)
        asked = np.where(mask[:, None] != 0, picks, -1).reshape(-1)
        noted = ahead._buffers.picked[layer, : asked.size].numpy()
        assert np.array_equal(np.where(noted < 0, -1, noted & 0xFFFF), asked)
        missed = ahead._buffers.address[2, : asked.size].numpy() != 0
        assert np.array_equal((noted >= 0) & (noted & MISSED != 0), missed)
        for pick, address in zip(
            picks[mask != 0].reshape(-1), ahead.address[: asked.size][asked >= 0].tolist(), strict=True
        ):
            assert np.all(bytes_at(address, SHAPE.span_bytes[layer]) == layer * 100 + pick)
        ahead.guess(layer)
        ahead.prefetch(layer)
    assert plain.stats() == ahead.stats()
    came = ahead.prefetched()
    assert came.needed > 0
    assert came.in_vain > 0
    assert plain.prefetched() is None
    ahead.reset_stats()
    assert ahead.prefetched() == Prefetched(0, 0)
