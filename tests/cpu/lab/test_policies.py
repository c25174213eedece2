"""Every policy against its plain reference, against a library, and against the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.errors import InputError
from hotset.experts.policy import Policy
from hotset.experts.simulate import simulate
from hotset.experts.trace import Trace
from hotset.lab.policies import POLICIES, LabPolicy, parse_policies, scored
from hotset.lab.replay import replay
from hotset.lab.requests import global_requests, layer_requests
from policy_references import REFERENCES

SINGLE = {"fifo": "FIFO", "lru": "LRU", "clock": "Clock", "sieve": "Sieve", "s3-fifo": "S3FIFO", "arc": "ARC"}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("n_experts", "k"), [(5, 1), (12, 3), (23, 7), (40, 2)])
def test_a_policy_hits_what_its_reference_hits(name, n_experts, k, made_up):
    trace = made_up(n_experts + k, n_tokens=250, n_experts=n_experts, k=k, span_bytes=(256, 1024))
    for requests in (layer_requests(trace, 0), global_requests(trace)):
        for n_slots in {0, 1, k - 1, k, k + 1, n_experts // 2, n_experts - 1, n_experts, n_experts + 3}:
            reference = REFERENCES[name](n_slots, cost=requests.cost) if name == "gdsf" else REFERENCES[name](n_slots)
            for r, experts in enumerate(requests.experts.tolist()):
                first = r % requests.n_layers == 0
                begins = first and (r == 0 or requests.answer[r] != requests.answer[r - 1])
                reference.request(experts, first=first, begins=begins)
            assert LabPolicy(name).hits(requests, n_slots).sum() == reference.hits, n_slots


@pytest.mark.parametrize("name", [name for name, kind in POLICIES.items() if kind.rules])
def test_compiled_and_plain_loops_agree(name, made_up):
    policy = LabPolicy.parse(name)
    requests = layer_requests(made_up(3, n_tokens=120), 1)
    rules = POLICIES[name].rules
    for n_slots in (1, 4, 9):
        for compiled, plain in zip(
            replay(rules, requests, n_slots, policy.decay),
            replay(rules, requests, n_slots, policy.decay, plain=True),
            strict=True,
        ):
            assert np.array_equal(compiled, plain)


@pytest.mark.parametrize("setting", ["lru", "lfu", "lrfu:16", "lrfu:0.5", "product"])
def test_the_cache_s_own_policies_hit_what_the_cache_hits(setting, made_up):
    trace = made_up(7, n_experts=20, k=4)
    for n_slots in (0, 2, 4, 7, 20):
        counts = simulate(trace, n_slots, Policy.parse(setting))
        for layer in range(2):
            assert LabPolicy.parse(setting).hits(layer_requests(trace, layer), n_slots).sum() == counts.hits[layer]


@pytest.mark.parametrize(("name", "n_slots"), [("gpt-oss-20b", 8), ("olmoe-1b-7b", 16)])
def test_product_is_the_cache_s_own_on_real_traces(name, n_slots, real):
    trace = real(name, 2_000)
    counts = simulate(trace, n_slots, Policy.parse("product"))
    for layer in (0, trace.n_layers - 1):
        assert LabPolicy("product").hits(layer_requests(trace, layer), n_slots).sum() == counts.hits[layer]


def test_overflows_are_those_of_the_cache(made_up):
    trace = made_up(8, n_experts=20, k=6)
    for n_slots in (0, 1, 5, 6):
        _, overflows = replay(scored.LRU, layer_requests(trace, 0), n_slots)
        assert overflows.sum() == simulate(trace, n_slots, Policy.parse("lru")).overflows[0]


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(("n_slots", "n_experts"), [(20, 60), (25, 128), (40, 128), (57, 300)])
def test_single_picks_hit_exactly_as_often_as_in_libcachesim(name, n_slots, n_experts):
    libcachesim = pytest.importorskip("libcachesim")
    rng = np.random.default_rng(n_slots)
    popular = 1 / np.arange(1, n_experts + 1) ** 0.8
    picks = rng.choice(n_experts, 3000, p=popular / popular.sum())
    back = rng.integers(1, 30, picks.size)
    picks = np.where((rng.random(picks.size) < 0.3) & (np.arange(picks.size) > 30), np.roll(picks, 1)[-back], picks)
    cache, hits = getattr(libcachesim, SINGLE[name])(cache_size=n_slots), 0
    for pick in picks:
        request = libcachesim.Request()
        request.obj_id, request.obj_size = int(pick) + 1, 1
        hits += cache.get(request)
    trace = Trace(picks[:, None, None], np.array([0, picks.size]), n_experts)
    assert LabPolicy(name).hits(layer_requests(trace, 0), n_slots).sum() == hits


def test_static_lets_the_least_used_of_the_whole_trace_leave():
    trace = Trace(np.array([0, 1, 0, 2, 1, 2, 0, 2])[:, None, None], np.array([0, 8]), 3)
    # uses 3, 2, 3: 1 leaves for 2, 0 (of two equals) for 1, 1 for 0
    assert LabPolicy("static").hits(layer_requests(trace, 0), 2).sum() == 3


def test_placement_never_hits_the_first_use_and_keeps_the_most_used():
    trace = Trace(np.array([0, 1, 1, 2, 1, 2, 0, 2])[:, None, None], np.array([0, 8]), 3)
    requests = layer_requests(trace, 0)
    assert [LabPolicy("placement").hits(requests, n).sum() for n in range(4)] == [0, 2, 4, 5]


def test_all_is_every_policy_once_and_lrfu_at_several_half_lives():
    names = [str(p) for p in parse_policies("all,lru,lrfu:16.0")]
    assert len(set(names)) == len(names)
    assert {"lru", "lfu", "lrfu:4", "lrfu:16", "fifo", "clock", "sieve", "s3-fifo", "slru", "lru-2", "arc"} <= {*names}
    assert {"w-tinylfu", "gdsf", "static", "belady", "unbounded"} <= {*names}


@pytest.mark.parametrize("text", ["", "mru", "lru:4", "lrfu:x", "lrfu:0", "lru,,lfu"])
def test_an_unknown_policy_is_refused(text):
    with pytest.raises(InputError, match="policy"):
        parse_policies(text)


def test_a_setting_left_out_is_the_cache_s_default():
    assert [str(p) for p in parse_policies("LRFU, lrfu:4")] == ["lrfu:16", "lrfu:4"]
