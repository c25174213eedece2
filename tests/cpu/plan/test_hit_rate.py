from __future__ import annotations

import numpy as np
import pytest

from hotset.errors import InputError
from hotset.experts.policy import Policy
from hotset.experts.simulate import simulate
from hotset.experts.trace import Trace
from hotset.lab.policies import LabPolicy
from hotset.lab.requests import layer_requests
from hotset.plan.hit_rate import (
    FRACTIONS,
    RECORDED,
    TraceHits,
    curve,
    errors_left_out,
    expected_hit_rate,
    fit,
    fitted,
    policy_hit_rate,
)


def random_trace(n_tokens: int = 200, n_layers: int = 3, n_experts: int = 16, k: int = 4) -> Trace:
    rng = np.random.default_rng(0)
    experts = np.argsort(rng.random((n_tokens, n_layers, n_experts)), axis=-1)[..., :k].astype(np.int16)
    return Trace(experts, np.array([0, 60, n_tokens]), n_experts)


def test_more_slots_hit_more_and_none_or_all_are_certain():
    rates = [curve(n / 64, fitted()) for n in range(65)]
    assert rates == sorted(rates)
    assert (rates[0], rates[-1]) == (0.0, 1.0)


def test_the_fit_is_near_what_it_was_made_of():
    for recorded in RECORDED.values():
        assert [curve(f, fitted()) for f in FRACTIONS] == pytest.approx(recorded, abs=0.04)


def test_a_curve_that_has_the_forms_own_shape_is_found_again():
    coefficients = np.array([1.0, 1.2, 0.05])
    made = [curve(f, coefficients) for f in FRACTIONS]
    assert fit([made, made]) == pytest.approx(coefficients)


def test_the_error_on_a_model_left_out_is_what_the_docs_say():
    errors = errors_left_out()
    assert errors.keys() == RECORDED.keys()
    worst = max(np.abs(e).max() for e in errors.values())
    assert worst == pytest.approx(0.072, abs=0.001)


def test_the_band_holds_every_recorded_model():
    for recorded in RECORDED.values():
        for f, rate in zip(FRACTIONS, recorded, strict=True):
            expected = expected_hit_rate([int(f * 64)], 64, 8)
            assert expected.low < rate < expected.high


def test_fewer_slots_than_a_token_picks_hit_at_most_their_share():
    assert expected_hit_rate([0], 64, 8).expected == 0
    assert expected_hit_rate([1], 64, 8).high <= 1 / 8


def test_layers_count_alike():
    both = expected_hit_rate([16, 32], 64, 8).expected
    assert both == pytest.approx((curve(0.25, fitted()) + curve(0.5, fitted())) / 2)
    assert expected_hit_rate([], 0, 0).expected == 1


def test_recorded_rates_are_what_a_replay_gives(shared):
    trace = Trace.read(shared / "traces" / "olmoe-1b-7b.decode.npz")
    policy, (i, f) = LabPolicy.parse("lrfu:16"), (1, FRACTIONS[1])
    hits = needed = 0
    for layer in range(trace.n_layers):
        requests = layer_requests(trace, layer)
        hits += policy.hits(requests, int(f * trace.n_experts)).sum()
        needed += requests.needed.sum()
    assert hits / needed == pytest.approx(RECORDED["olmoe-1b-7b"][i], abs=1e-4)


def test_a_trace_is_replayed_with_each_layers_own_slots():
    trace = random_trace()
    found = TraceHits(trace, "lru", "t").at((4, 8, 16))
    hits = [LabPolicy("lru").hits(layer_requests(trace, layer), n).sum() for layer, n in enumerate((4, 8, 16))]
    assert found.expected == pytest.approx(sum(hits) / (200 * 3 * 4))
    assert found.low <= found.expected <= found.high
    assert found.source == "replay of t"


def test_static_placement_hits_what_its_first_experts_are_picked():
    trace = random_trace()
    found = TraceHits(trace, "static", "t").at((4, 8, 16))
    run = simulate(trace, (4, 8, 16), Policy.parse("static"))
    assert found.expected == pytest.approx(sum(run.hits) / (200 * 3 * 4))


def test_without_a_trace_other_policies_than_the_curves_own_are_told_apart():
    assert policy_hit_rate(Policy.parse("lrfu"), [16], 64, 8) == expected_hit_rate([16], 64, 8)
    assert "under lrfu:16; give --trace for lru" in policy_hit_rate(Policy.parse("lru"), [16], 64, 8).source
    assert policy_hit_rate(Policy.parse("static"), [16, 32], 64, 8).all == (0.375,) * 3
    assert policy_hit_rate(Policy.parse("static"), [], 0, 0).expected == 1


def test_a_trace_of_another_model_is_refused():
    hits = TraceHits(random_trace(), "lrfu:16", "t")
    hits.check(3, 16, 4)
    with pytest.raises(InputError, match="3 layers with 16 experts, 4 picked, and the model has 3 with 16, 8 picked"):
        hits.check(3, 16, 8)
