from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hotset.experts.host_cache import HostCache
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape

SHAPE = CacheShape((256, 512), (8, 12), (3, 5), k=2, max_rows=3)


def requests(n):
    rng = np.random.default_rng(2)
    for step in range(n):
        rows = 1 + step % 3
        mask = (rng.random(rows) < 0.8).astype(np.int32)
        mask[0] = 1
        yield mask, [np.array([rng.permutation(e)[:2] for _ in range(rows)], np.int32) for e in SHAPE.n_experts]


def test_it_counts_what_the_reference_counts():
    cache = HostCache(SHAPE, Policy())
    states = [LayerState(Policy(), e, s, 3) for e, s in zip(SHAPE.n_experts, SHAPE.n_slots, strict=True)]
    misses = [0, 0]
    for mask, layers in requests(60):
        for layer, picks in enumerate(layers):
            cache.lookup(layer, picks, mask)
            misses[layer] += states[layer].request(picks, mask).misses
            assert np.array_equal(cache.state(layer).slot_of_expert, states[layer].slot_of_expert)
    stats = cache.stats()
    assert stats.misses == tuple(misses)
    assert stats.requests == (60, 60)
    assert stats.bytes_fetched == misses[0] * 256 + misses[1] * 512
    assert stats.policy == "lrfu:16"
    assert stats.hit_rate == sum(stats.hits) / (sum(stats.hits) + sum(misses))


def test_the_ring_keeps_the_last_picks_in_order():
    cache = HostCache(SHAPE, Policy(), ring_steps=4)
    history = list(requests(7))
    for n, (mask, layers) in enumerate(history):
        for layer, picks in enumerate(layers):
            cache.lookup(layer, picks, mask)
        assert len(cache.recorded_picks()) == min(n + 1, 4)
    for entry, (mask, layers) in zip(cache.recorded_picks(), history[3:], strict=True):
        for layer, picks in enumerate(layers):
            expected = np.full((3, 2), -1)
            expected[: len(picks)] = np.where(mask[:, None] != 0, picks, -1)
            assert entry[layer].tolist() == expected.tolist()


def test_the_ring_holds_the_same_whenever_it_is_read_and_however_layers_take_turns():
    """A prompt asks for many rows of a layer before the next layer's."""
    often, seldom = HostCache(SHAPE, Policy(), ring_steps=4), HostCache(SHAPE, Policy(), ring_steps=4)
    rng = np.random.default_rng(3)
    history = list(requests(23))
    while history:
        n = min(len(history), int(rng.integers(1, 7)))
        chunk, history = history[:n], history[n:]
        for layer in range(SHAPE.n_layers):
            for mask, layers in chunk:
                weights = rng.random((len(mask), SHAPE.k)).astype(np.float32)
                for cache in (often, seldom):
                    cache.lookup(layer, layers[layer], mask, weights)
                often.recorded_picks()
    picks = often.recorded_picks()
    assert np.array_equal(picks, seldom.recorded_picks())
    assert np.array_equal(often.recorded_weights()[picks >= 0], seldom.recorded_weights()[picks >= 0])


def test_without_a_ring_nothing_is_recorded():
    cache = HostCache(SHAPE, Policy())
    cache.lookup(0, np.array([[1, 2]], np.int32))
    assert cache.recorded_picks().shape == (0, 2, 3, 2)


def test_reset_stats_keeps_residency_and_reset_forgets_it():
    cache = HostCache(SHAPE, Policy())
    picks = np.array([[1, 2]], np.int32)
    cache.lookup(0, picks)
    cache.reset_stats()
    cache.lookup(0, picks)
    assert (cache.stats().hits, cache.stats().misses) == ((2, 0), (0, 0))
    cache.reset()
    cache.lookup(0, picks)
    assert (cache.stats().hits, cache.stats().misses) == ((0, 0), (2, 0))


@pytest.mark.parametrize("policy", ["lrfu:16", "product", "lru", "lfu"])
def test_the_map_shows_what_is_used_warmer_than_the_rest(policy):
    cache = HostCache(CacheShape((256,), (8,), (3,), k=2, max_rows=1), Policy.parse(policy))
    for picks in ([[4, 5]], [[1, 2]], [[1, 2]], [[1, 2]]):
        cache.lookup(0, np.array(picks, np.int32))
    heat = cache.expert_map().heat[0]
    assert heat.min() == 0
    assert 0 < heat[4] == heat[5] < heat[1] == heat[2] <= 1


def test_seeded_experts_hit_at_once():
    cache = HostCache(SHAPE, Policy())
    cache.seed(0, [5, 6])
    cache.lookup(0, np.array([[6, 5]], np.int32))
    assert cache.stats().hits == (2, 0)


def test_the_policy_side_imports_without_torch():
    modules = "policy request layer_state slots trace trace_file trace_reader trace_csv simulate stats host_cache"
    code = f"""
import sys
for name in "{modules}".split():
    __import__("hotset.experts." + name)
assert "torch" not in sys.modules and "numba" not in sys.modules and "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
