"""Nothing beats the optimum: against every choice there is on small traces, and against every policy on larger ones."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from hotset.experts.trace import Trace
from hotset.lab.policies import LabPolicy, parse_policies
from hotset.lab.policies.optimum import optimal_hits
from hotset.lab.requests import global_requests, layer_requests
from hotset.lab.study import Study

BELADY, OPTIMUM = LabPolicy("belady"), LabPolicy("optimum")
DEMAND = [p for p in parse_policies("all") if p.name not in ("belady", "unbounded")]


def subsets(experts, n):
    return [frozenset(c) for size in range(n + 1) for c in combinations(sorted(experts), size)]


def legal(resident, experts, n_slots, *, keeps_own):
    """What may be resident after a request: with `keeps_own` all of its experts, or nothing but them if they are more than the slots."""
    for after in subsets(resident | experts, n_slots):
        if not keeps_own or (experts <= after if len(experts) <= n_slots else after <= experts):
            yield after


def best_by_search(requests, n_slots, *, keeps_own):
    best = {frozenset(): 0}
    for request in requests.experts.tolist():
        experts, following = frozenset(request), {}
        for resident, hits in best.items():
            now = hits + len(experts & resident)
            for after in legal(resident, experts, n_slots, keeps_own=keeps_own):
                following[after] = max(following.get(after, 0), now)
        best = following
    return max(best.values())


@pytest.mark.parametrize("keeps_own", [True, False])
@pytest.mark.parametrize(("n_experts", "k"), [(4, 1), (5, 2), (5, 3)])
def test_the_greedy_rule_finds_the_best_of_all_choices(n_experts, k, keeps_own, made_up):
    for seed in range(6):
        requests = layer_requests(made_up(seed, n_tokens=14, n_experts=n_experts, k=k), 0)
        for n_slots in range(n_experts + 1):
            found = optimal_hits(requests, n_slots, keeps_own=keeps_own, plain=True).sum()
            assert found == best_by_search(requests, n_slots, keeps_own=keeps_own)


@pytest.mark.parametrize("keeps_own", [True, False])
def test_compiled_and_plain_agree(keeps_own, made_up):
    requests = global_requests(made_up(2))
    for n_slots in (0, 2, 5, 11, 24):
        compiled, plain = (optimal_hits(requests, n_slots, keeps_own=keeps_own, plain=p) for p in (False, True))
        assert np.array_equal(compiled, plain)


@pytest.mark.parametrize(("n_experts", "k"), [(6, 1), (9, 2), (16, 6)])
def test_no_policy_beats_belady_at_any_size_in_any_pool(n_experts, k, made_up):
    trace = made_up(n_experts, n_tokens=200, n_experts=n_experts, k=k)
    for requests in (layer_requests(trace, 0), global_requests(trace)):
        for n_slots in range(requests.n_members + 1):
            best, bound = BELADY.hits(requests, n_slots).sum(), OPTIMUM.hits(requests, n_slots).sum()
            assert best <= bound
            assert LabPolicy("placement").hits(requests, n_slots).sum() <= bound
            for policy in DEMAND:
                assert policy.hits(requests, n_slots).sum() <= best, (policy, n_slots)


def test_nor_where_picks_are_uniform_or_go_round_in_a_circle():
    rng = np.random.default_rng(0)
    uniform = np.array([rng.permutation(10)[:3] for _ in range(300)])
    circle = (np.arange(300)[:, None] * 3 + np.arange(3)) % 10
    for experts in (uniform, circle):
        requests = layer_requests(Trace(experts[:, None], np.array([0, 300]), 10), 0)
        for n_slots in range(11):
            best = BELADY.hits(requests, n_slots).sum()
            assert all(policy.hits(requests, n_slots).sum() <= best for policy in DEMAND)


@pytest.mark.parametrize(("name", "n_tokens"), [("gpt-oss-20b", 1500), ("olmoe-1b-7b", 1000)])
def test_no_policy_beats_belady_on_real_traces(real, name, n_tokens):
    trace = real(name, n_tokens)
    trace = Trace(trace.experts[:, ::6], trace.offsets, trace.n_experts)
    sizes = [x / 20 for x in range(1, 21)]
    for outcome in Study(trace, 2).outcomes(parse_policies("all"), ["layer", "global", "marginal"], sizes):
        assert outcome.regret >= 0, (outcome.policy, outcome.pool, outcome.slots)


def test_a_slot_for_every_expert_misses_first_uses_only(made_up):
    requests = layer_requests(made_up(4), 0)
    first_uses = len(np.unique(requests.experts))
    assert BELADY.hits(requests, 12).sum() == requests.experts.size - first_uses
