from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

from hotset.errors import InputError
from hotset.host.router import route_rows
from hotset.kernels.router import route as device_route
from hotset.model.host_ops import SCORINGS
from hotset.model.routing import RouterRule, route

GOLDEN = np.array([[2, 1, 0, -1]], np.float32)


def routed_by_kernel(logits, rule, bias=None):
    padded = torch.full((len(logits), rule.n_experts + 7), 1e9)
    padded[:, : rule.n_experts] = torch.from_numpy(np.asarray(logits, np.float32))
    picks = torch.full((len(logits), rule.n_picks), -1, dtype=torch.int32)
    weights = torch.full((len(logits), rule.n_picks), float("nan"))
    device_route(padded, rule, None if bias is None else torch.from_numpy(bias), picks, weights)
    return picks.numpy(), weights.numpy()


def routed_by_loops(logits, rule, bias=None):
    picks = np.full((len(logits), rule.n_picks), -1, np.int32)
    weights = np.full((len(logits), rule.n_picks), np.nan, np.float32)
    groups = (rule.n_groups, rule.n_groups_used, rule.n_summed)
    rows = np.asarray(logits, np.float32)
    bias = np.empty(0, np.float32) if bias is None else bias
    route_rows(rows, bias, SCORINGS[rule.scoring], rule.renormalise, rule.scale, groups, picks, weights, rule.n_experts)
    return picks, weights


ROUTES = pytest.mark.parametrize("routed", [route, routed_by_kernel, routed_by_loops])


@ROUTES
@pytest.mark.parametrize(
    ("scoring", "renormalise", "expected"),
    [
        ("softmax", False, [0.6439, 0.2369, 0.0871, 0.0321]),
        ("softmax", True, [0.6439, 0.2369, 0.0871, 0.0321]),
        ("sigmoid", False, [0.8808, 0.7311, 0.5, 0.2689]),
    ],
)
def test_golden_scores_of_all_experts(routed, scoring, renormalise, expected):
    picks, weights = routed(GOLDEN, RouterRule(4, 4, scoring, renormalise))
    assert picks.tolist() == [[0, 1, 2, 3]]
    np.testing.assert_allclose(weights[0], expected, atol=5e-5)


@ROUTES
@pytest.mark.parametrize(
    ("scoring", "renormalise", "scale", "expected"),
    [
        ("softmax", True, 1.0, [0.7311, 0.2689]),
        ("softmax", False, 1.0, [0.6439, 0.2369]),
        ("softmax", True, 2.5, [1.8276, 0.6724]),
        ("softmax", False, 2.5, [1.6098, 0.5922]),
        ("sigmoid", True, 1.0, [0.5464, 0.4536]),
        ("softmax", True, 0.0, [0.7311, 0.2689]),
        ("softmax", True, None, [0.7311, 0.2689]),
    ],
)
def test_golden_weights_of_the_best_two(routed, scoring, renormalise, scale, expected):
    picks, weights = routed(GOLDEN, RouterRule(4, 2, scoring, renormalise, scale))
    assert picks.tolist() == [[0, 1]]
    np.testing.assert_allclose(weights[0], expected, atol=6e-5)


@ROUTES
@pytest.mark.parametrize(("scale", "expected"), [(1.0, [0.2339, 0.7661]), (2.5, [0.5848, 1.9152])])
def test_a_bias_moves_the_picks_and_not_the_weights(routed, scale, expected):
    bias = np.array([0, 0, 0, 3], np.float32)
    picks, weights = routed(GOLDEN, RouterRule(4, 2, "sigmoid", scale=scale), bias)
    assert picks.tolist() == [[3, 0]]
    np.testing.assert_allclose(weights[0], expected, atol=6e-5)


@ROUTES
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_ties_go_to_the_lowest_experts(routed, scoring, with_bias):
    bias = np.zeros(7, np.float32) if with_bias else None
    picks, weights = routed(np.zeros((2, 7), np.float32), RouterRule(7, 3, scoring), bias)
    assert picks.tolist() == [[0, 1, 2]] * 2
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


@ROUTES
@pytest.mark.parametrize("n_rows", [1, 2, 7])
def test_a_single_pick_renormalised_weighs_the_scale(routed, n_rows):
    logits = np.random.default_rng(n_rows).normal(size=(n_rows, 5)).astype(np.float32)
    picks, weights = routed(logits, RouterRule(5, 1, scale=1.5))
    assert picks[:, 0].tolist() == logits.argmax(1).tolist()
    assert weights.tolist() == [[1.5]] * n_rows


@pytest.mark.parametrize("routed", [routed_by_kernel, routed_by_loops])
@pytest.mark.parametrize("n_experts", [8, 60, 160])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_kernel_and_loops_equal_the_reference(routed, n_experts, scoring):
    rng = np.random.default_rng(n_experts)
    logits = rng.normal(size=(3, n_experts)).astype(np.float32)
    bias = rng.normal(size=n_experts).astype(np.float32)
    for b in (None, bias):
        picks, weights = routed(logits, RouterRule(n_experts, 6, scoring, scale=2.0), b)
        expected_picks, expected_weights = route(logits, RouterRule(n_experts, 6, scoring, scale=2.0), b)
        assert np.array_equal(picks, expected_picks)
        np.testing.assert_allclose(weights, expected_weights, rtol=1e-5)


@ROUTES
def test_logits_far_apart_keep_their_order_where_scores_vanish(routed):
    picks, weights = routed(np.array([[-900, -300, 0, -200]], np.float32), RouterRule(4, 3))
    assert picks.tolist() == [[2, 3, 1]]
    assert weights.tolist() == [[1, 0, 0]]


@ROUTES
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("damaged", [[0], [1, 2], [0, 1, 2, 3]])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_ranks_last_and_stays_in_range(routed, scoring, damaged):
    logits = GOLDEN.copy()
    logits[0, damaged] = np.nan
    picks, _ = routed(logits, RouterRule(4, 4, scoring))
    assert picks[0].tolist() == [e for e in range(4) if e not in damaged] + damaged


@ROUTES
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinite_logits_are_ranked_and_share_their_weight(routed):
    picks, weights = routed(np.array([[0, np.inf, -np.inf, np.inf]], np.float32), RouterRule(4, 2))
    assert picks.tolist() == [[1, 3]]
    assert weights.tolist() == [[0.5, 0.5]]


def test_a_row_alone_has_the_bits_that_it_has_among_others():
    logits = np.random.default_rng(0).normal(size=(5, 60)).astype(np.float32)
    together = routed_by_kernel(logits, RouterRule(60, 4))
    for r in range(5):
        picks, weights = routed_by_kernel(logits[r : r + 1], RouterRule(60, 4))
        assert np.array_equal(picks[0], together[0][r])
        assert np.array_equal(weights[0], together[1][r])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logits_of_any_width_give_the_same_picks(dtype):
    picks, _ = route(GOLDEN.astype(dtype), RouterRule(4, 2))
    assert picks.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("n_experts", "n_picks", "scoring"), [(4, 5, "softmax"), (4, 0, "softmax"), (4, -1, "softmax"), (4, 2, "tanh")]
)
def test_a_rule_that_cannot_be_is_refused(n_experts, n_picks, scoring):
    with pytest.raises(InputError, match=str(n_picks) if scoring != "tanh" else "tanh"):
        RouterRule(n_experts, n_picks, scoring)


@pytest.mark.parametrize("routed", [routed_by_kernel, routed_by_loops])
@pytest.mark.parametrize(
    "rule",
    [
        RouterRule(12, 4, "sigmoid", n_groups=4, n_groups_used=2),
        RouterRule(12, 3, "softmax", n_groups=3, n_groups_used=1),
        RouterRule(60, 5, "softmax of picks", renormalise=False),
    ],
    ids=lambda rule: f"{rule.scoring}, {rule.n_groups} groups",
)
def test_groups_and_softmax_over_picks_equal_the_reference(routed, rule):
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(6, rule.n_experts)).astype(np.float32)
    logits[5] = 0
    bias = rng.normal(size=rule.n_experts).astype(np.float32) if rule.scoring == "sigmoid" else None
    picks, weights = routed(logits, rule, bias)
    expected_picks, expected_weights = route(logits, rule, bias)
    assert np.array_equal(picks, expected_picks)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-5)


@ROUTES
@pytest.mark.parametrize(("scoring", "expected"), [("softmax", [0, 1]), ("sigmoid", [2, 3])])
def test_a_group_is_as_good_as_its_best_or_as_its_two_best(routed, scoring, expected):
    scores = np.array([[0.9, 0.01, 0.6, 0.6]], np.float32)
    logits = np.log(scores) if scoring == "softmax" else np.log(scores / (1 - scores))
    picks, _ = routed(logits, RouterRule(4, 2, scoring, n_groups=2, n_groups_used=1))
    assert sorted(picks[0].tolist()) == expected


@ROUTES
def test_experts_of_groups_left_out_are_never_picked_even_below_zero(routed):
    logits = np.zeros((1, 4), np.float32)
    bias = np.array([-0.5, -0.4, -0.9, -0.8], np.float32) - 0.5
    picks, _ = routed(logits, RouterRule(4, 2, "sigmoid", n_groups=2, n_groups_used=1), bias)
    assert picks.tolist() == [[1, 0]]


def test_groups_that_hold_too_few_experts_are_refused():
    with pytest.raises(InputError, match="groups of 1 experts hold fewer"):
        RouterRule(8, 2, n_groups=8, n_groups_used=1)
