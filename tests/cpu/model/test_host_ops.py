"""The ops of the CPU that are no kernels of host/: routing, the order of experts, sums in the order of picks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hotset.host.router import by_expert, combine
from hotset.model.host_ops import HostOps
from hotset.model.routing import RouterRule, route


def routed(logits: np.ndarray, rule: RouterRule) -> tuple[np.ndarray, np.ndarray]:
    experts = SimpleNamespace(rule=SimpleNamespace(router=rule), selection_bias=None)
    return HostOps.route(SimpleNamespace(routing=None), logits, experts, batch=None)


def padded(logits: np.ndarray) -> np.ndarray:
    """Rows as a matrix product leaves them, with padding that would win."""
    return np.pad(logits, ((0, 0), (0, 5)), constant_values=np.inf).astype(np.float32)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_routing_is_that_of_the_reference(scoring, renormalise, scale):
    rule = RouterRule(n_experts=60, n_picks=6, scoring=scoring, renormalise=renormalise, scale=scale)
    logits = np.random.default_rng(1).normal(0, 2, (40, 60))
    logits[3] = 0
    logits[4, ::7] = 9
    logits[5] *= 40
    picks, weights = routed(padded(logits), rule)
    expected_picks, expected_weights = route(padded(logits), rule)
    assert np.array_equal(picks, expected_picks)
    assert np.allclose(weights, expected_weights, rtol=1e-6, atol=1e-30)


def test_ties_go_to_the_lowest_expert():
    picks, weights = routed(np.zeros((1, 16), np.float32), RouterRule(n_experts=16, n_picks=4))
    assert picks.tolist() == [[0, 1, 2, 3]]
    assert weights.tolist() == [[0.25] * 4]


def test_poisoned_logits_still_name_distinct_experts_and_show_in_the_weights():
    logits = np.zeros((3, 8), np.float32)
    logits[0, 2] = np.nan
    logits[1] = np.nan
    logits[2, 5] = np.inf
    picks, weights = routed(logits, RouterRule(n_experts=8, n_picks=3))
    assert all(len(set(row)) == 3 and min(row) >= 0 and max(row) < 8 for row in picks.tolist())
    assert np.isnan(weights[:2]).all()
    assert picks[2, 0] == 5
    assert weights[2].tolist() == [1, 0, 0]


def test_pairs_are_grouped_by_expert_in_their_order():
    picks = np.array([7, 2, 2, 0, 7, 7], np.int32)
    experts, starts, pairs = by_expert(picks, 9)
    assert experts.tolist() == [0, 2, 7]
    assert starts.tolist() == [0, 1, 3, 6]
    assert pairs.tolist() == [3, 1, 2, 0, 4, 5]


def test_outputs_of_experts_are_summed_in_the_order_of_picks():
    rng = np.random.default_rng(2)
    z, weights = rng.standard_normal((6, 20), np.float32), rng.random((2, 3), np.float32)
    expected = np.zeros((2, 17), np.float32)
    for j in range(3):
        expected += weights[:, j, None] * z.reshape(2, 3, 20)[:, j, :17]
    assert np.allclose(combine(z, weights, 17), expected, rtol=1e-6, atol=1e-6)
