from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hotset.errors import InputError
from hotset.experts.policy import Policy
from hotset.experts.simulate import simulate
from hotset.experts.trace import Trace
from hotset.lab.intervals import interval
from hotset.lab.needs import expert_uses, reuse_distances, slots_for
from hotset.lab.policies import LabPolicy, parse_policies
from hotset.lab.pools import deal_slots, parse_pools
from hotset.lab.study import Study

HALF = Fraction(1, 2)
# DESIGN.md, section 3: hit rates of the first 30,000 tokens at 25, 37.5 and 50 % of slots.
TABLE = {
    "gpt-oss-20b": {
        ("lru", "layer"): (0.671, 0.811, 0.898),
        ("lrfu:4", "layer"): (0.699, 0.826, 0.904),
        ("lrfu:16", "layer"): (0.703, 0.835, 0.913),
        ("lrfu:64", "layer"): (0.693, 0.827, 0.908),
        ("lrfu:256", "layer"): (0.672, 0.809, 0.895),
        ("lfu", "layer"): (0.650, 0.789, 0.882),
        ("belady", "layer"): (0.782, 0.895, 0.950),
        ("lru", "global"): (0.631, 0.804, 0.908),
        ("lrfu:16", "global"): (0.687, 0.833, 0.921),
    },
    "olmoe-1b-7b": {
        ("lru", "layer"): (0.628, 0.751, 0.843),
        ("lrfu:4", "layer"): (0.657, 0.770, 0.854),
        ("lrfu:16", "layer"): (0.668, 0.786, 0.869),
        ("lrfu:64", "layer"): (0.656, 0.773, 0.857),
        ("lrfu:256", "layer"): (0.643, 0.756, 0.840),
        ("lfu", "layer"): (0.619, 0.725, 0.805),
        ("belady", "layer"): (0.757, 0.868, 0.929),
        ("lru", "global"): (0.595, 0.738, 0.837),
        ("lrfu:16", "global"): (0.637, 0.770, 0.863),
    },
}


@pytest.mark.parametrize("name", TABLE)
def test_hit_rates_of_real_traces_are_those_of_the_table(real, name):
    study = Study(real(name, 30_000), 2)
    found = {}
    for pool in ("layer", "global"):
        policies = parse_policies(",".join(policy for policy, p in TABLE[name] if p == pool))
        sizes = [Fraction(1, 4), Fraction(3, 8), HALF] if pool == "layer" else [Fraction(3, 8)]
        for outcome in study.outcomes(policies, [pool], sizes):
            found[str(outcome.policy), pool, outcome.slots] = outcome.hit_rate
    for (policy, pool, slots), rate in found.items():
        assert rate == pytest.approx(TABLE[name][policy, pool][(0.25, 0.375, 0.5).index(slots)], abs=0.002)


def test_a_pool_per_layer_hits_what_the_cache_hits(made_up):
    trace = made_up(1, n_experts=20, k=4)
    (outcome,) = Study(trace).outcomes([LabPolicy("lru")], ["layer"], [HALF])
    counts = simulate(trace, 10, Policy.parse("lru"))
    assert tuple(outcome.hits.sum(0)) == counts.hits
    assert outcome.hit_rate == counts.hit_rate
    assert outcome.needed.sum(1).tolist() == [60 * 8, 90 * 8, 150 * 8]


def test_bytes_count_each_layer_by_its_spans(made_up):
    trace = made_up(1, span_bytes=(256, 1024))
    (outcome,) = Study(trace).outcomes([LabPolicy("lru")], ["layer"], [HALF])
    hits, needed = outcome.hits.sum(0), outcome.needed.sum(0)
    assert outcome.byte_hit_rate == (hits[0] + 4 * hits[1]) / (needed[0] + 4 * needed[1])
    assert outcome.bytes_per_token == ((needed - hits) @ [256, 1024]) / trace.n_tokens


def test_without_sizes_bytes_are_unknown_and_their_rate_is_the_hit_rate(made_up):
    (outcome,) = Study(made_up(1)).outcomes([LabPolicy("lru")], ["layer"], [HALF])
    assert outcome.bytes_per_token is None
    assert outcome.byte_hit_rate == outcome.hit_rate


def test_below_one_token_s_demand_is_said(made_up):
    study = Study(made_up(1))  # 3 picks of 12 experts
    sizes = [Fraction(2, 12), Fraction(3, 12)]
    found = [(o.pool, o.below_demand) for o in study.outcomes([LabPolicy("lru")], ["layer", "global"], sizes)]
    assert found == [("layer", True), ("layer", False), ("global", True), ("global", False)]


def test_global_lru_below_one_token_s_demand_never_hits():
    trace = Trace(np.tile(np.arange(3), (50, 4, 1)), np.array([0, 50]), 6)
    (outcome,) = Study(trace).outcomes([LabPolicy("lru")], ["global"], [Fraction(1, 3)])
    assert outcome.hit_rate == 0


def test_unbounded_has_a_slot_for_every_expert_and_is_named_once(made_up):
    outcomes = list(Study(made_up(1)).outcomes(parse_policies("lru,unbounded"), ["layer"], [Fraction(1, 4), HALF]))
    assert [(str(o.policy), o.slots) for o in outcomes] == [("lru", 0.25), ("lru", 0.5), ("unbounded", 1.0)]
    assert outcomes[-1].regret == 0


def test_slots_dealt_where_they_gain_most_are_never_worse_on_the_same_trace(made_up):
    trace = made_up(5, n_layers=4, n_experts=16)
    experts = trace.experts.copy()
    experts[:, 1] = experts[0, 1]  # one layer needs three slots and no more
    study = Study(Trace(experts, trace.offsets, 16))
    equal, dealt = study.outcomes([LabPolicy("lrfu", 16.0)], ["layer", "marginal"], [HALF])
    assert dealt.hits.sum() > equal.hits.sum()
    assert dealt.layer_slots[1] == 3
    assert sum(dealt.layer_slots) <= 32


def test_slots_are_dealt_within_the_bytes_of_equal_slots():
    curves = np.array([[0, 5, 9, 12, 14], [0, 9, 9, 9, 9], [0, 1, 2, 3, 4]])
    assert deal_slots(curves, (1, 1, 1), 2) == (4, 1, 1)
    assert deal_slots(curves, (1, 4, 1), 1) == (2, 1, 0)
    assert deal_slots(np.zeros((2, 3), np.int64), (1, 1), 1) in {(1, 1), (2, 0), (0, 2)}


def test_a_step_at_the_end_of_a_curve_is_not_taken_in_part():
    curves = np.array([[0, 0, 0, 0, 8], [0, 1, 2, 3, 4]])
    assert deal_slots(curves, (1, 1), 2) == (4, 0)
    assert curves[[0, 1], deal_slots(curves, (1, 1), 1)].sum() >= curves[:, 1].sum()


def test_an_interval_lies_around_the_rate_and_shrinks_with_answers():
    rng = np.random.default_rng(0)
    widths = []
    for n in (10, 1000):
        needed = rng.integers(50, 100, n)
        hits = rng.binomial(needed, 0.7)
        low, high = interval(hits, needed)
        assert low < hits.sum() / needed.sum() < high
        widths.append(high - low)
    assert widths[0] > 4 * widths[1]


def test_one_answer_has_no_interval():
    assert interval(np.array([3]), np.array([4])) is None


def test_reuse_is_counted_in_tokens():
    trace = Trace(np.array([0, 1, 0, 2, 1, 2])[:, None, None], np.array([0, 6]), 3)
    edges, counts = reuse_distances(trace)  # 0 after 2 tokens, 1 after 3, 2 after 2
    assert dict(zip(edges.tolist(), counts.tolist(), strict=False)) == {1: 0, 2: 3}
    assert expert_uses(trace).tolist() == [[2, 2, 2]]


def test_needs_are_the_fewest_slots_that_reach_a_rate():
    curves = np.array([[0, 4, 8, 9], [0, 0, 0, 2]])
    assert slots_for(curves, np.array([10, 10]), 0.75).tolist() == [2, 3]


def test_results_are_plain_values(made_up):
    (outcome,) = Study(made_up(1)).outcomes([LabPolicy("belady")], ["global"], [HALF])
    found = outcome.as_dict()
    assert {"policy": "belady", "pool": "global", "slots": 0.5}.items() <= found.items()
    assert {"hit_rate", "byte_hit_rate", "bytes_per_token", "regret", "hit_rate_95"} <= found.keys()


def test_a_trace_without_tokens_has_no_rates():
    (outcome,) = Study(Trace(np.zeros((0, 2, 1), np.uint8), np.array([0]), 4)).outcomes(
        [LabPolicy("lru")], ["layer"], [HALF]
    )
    assert (outcome.hit_rate, outcome.regret, outcome.hit_rate_95) == (None, None, None)


def test_pools_are_read_by_name():
    assert parse_pools("all") == ["layer", "global", "marginal"]
    assert parse_pools("Global, layer,global") == ["global", "layer"]
    with pytest.raises(InputError, match="pool 'heap' is unknown"):
        parse_pools("heap")
