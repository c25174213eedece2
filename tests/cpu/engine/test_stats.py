"""The counts of a run: what the policy reference says on the recorded picks, prompts and decoding apart."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy


def replayed(model, policy: str) -> list[np.ndarray]:
    """(hits, misses, overflows) [steps, 3] per layer, by the plain reference on the picks that the engine recorded."""
    ring = model.runner.model.cache.recorded_picks()
    shape = model.runner.model.cache.shape
    counts = []
    for layer in range(shape.n_layers):
        state = LayerState(Policy.parse(policy), shape.n_experts[layer], shape.n_slots[layer], shape.max_rows)
        decisions = [state.request(rows[rows[:, 0] >= 0].astype(np.int32)) for rows in ring[:, layer]]
        counts.append(np.array([(d.hits, d.misses, d.overflows) for d in decisions]))
        distinct = [len(np.unique(rows[rows >= 0])) for rows in ring[:, layer]]
        assert counts[-1][:, :2].sum(1).tolist() == distinct
    return counts


@pytest.mark.parametrize("policy", ["lru", "lfu", "lrfu:16", "static"])
@pytest.mark.parametrize("size", ["off", "3slots", "25%", "100%"])
def test_counts_are_those_of_the_policy_on_the_recorded_picks(policy, size, fresh, some_tokens):
    model = fresh(expert_cache=size, policy=policy, record_steps=40)
    n_prompt, n_new = 37, 9
    model.generate(some_tokens(n_prompt), max_tokens=n_new, temperature=0, logit_bias={0: -np.inf})
    stats = model.stats()
    counts, n_requests = replayed(model, policy), -(-n_prompt // 8)
    assert len(counts[0]) == n_requests + n_new - 1
    for phase, steps in ((stats.prompt, slice(0, n_requests)), (stats, slice(n_requests, None))):
        for layer, count, span in zip(phase.layers, counts, model.runner.model.bank.span_bytes, strict=True):
            assert [layer.hits, layer.misses, layer.overflows] == count[steps].sum(0).tolist()
            assert layer.bytes_fetched == layer.misses * span
        assert phase.bytes_fetched == sum(layer.bytes_fetched for layer in phase.layers)
        assert phase.hit_rate == phase.hits / (phase.hits + phase.misses)
    assert (stats.prompt.tokens, stats.tokens) == (n_prompt, n_new - 1)
    assert stats.policy == policy


def test_the_cpu_says_that_nothing_is_fetched(demo):
    stats = demo.stats()
    assert not stats.active
    assert "experts are computed in host memory" in stats.reason
    assert stats.fetch_ms is None


def test_a_reset_counts_from_zero_with_what_is_resident(fresh, some_tokens):
    model = fresh(expert_cache="100%")
    for _ in range(2):
        model.reset_stats()
        model.generate(some_tokens(40), max_tokens=4, temperature=0)
    assert (model.stats().misses, model.stats().prompt.misses) == (0, 0)
    model.reset_stats()
    assert (model.stats().tokens, model.stats().hits, model.stats().hit_rate) == (0, 0, None)


def test_a_reset_of_the_cache_is_as_just_loaded(fresh, some_tokens):
    model = fresh()
    runs = []
    for _ in range(2):
        model.runner.reset_cache()
        model.generate(some_tokens(40), max_tokens=4, temperature=0)
        runs.append(model.stats())
    assert runs[0] == runs[1]


def test_logits_count_as_a_prompt(fresh, some_tokens):
    model = fresh()
    model.logits(some_tokens(20))
    model.logits(some_tokens(5), stepwise=True)
    assert (model.stats().prompt.tokens, model.stats().tokens) == (25, 0)


def test_two_engines_count_apart(fresh, some_tokens):
    a, b = fresh(), fresh(policy="lru", expert_cache="50%")
    a.generate(some_tokens(30), max_tokens=5, temperature=0)
    before = a.stats()
    assert (b.stats().hits, b.stats().prompt.tokens) == (0, 0)
    b.generate(some_tokens(12), max_tokens=3, temperature=0)
    assert a.stats() == before
    assert b.stats().prompt.tokens == 12
    assert (a.stats().policy, b.stats().policy) == ("lrfu:16", "lru")
    assert (a.stats().layers[0].n_slots, b.stats().layers[0].n_slots) == (8, 16)


def test_stats_are_plain_values(demo):
    found = demo.stats().as_dict()
    assert {"hits", "misses", "bytes_fetched", "layers", "prompt"} <= found.keys()
    assert found["layers"][0].keys() == {"hits", "misses", "overflows", "bytes_fetched", "n_slots", "n_experts"}


def test_fields_can_be_had_by_name(model_of):
    stats = model_of("demo").stats()
    assert stats["hits"] == stats.hits
    assert stats["layers"][0]["bytes_fetched"] == stats.layers[0].bytes_fetched
