from __future__ import annotations

import numpy as np
import pytest

from hotset.errors import InputError
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy
from hotset.experts.simulate import batch_tokens, simulate
from hotset.experts.trace import Trace
from hotset.kernels.rows import BEGINS, PADDING, REAL

# DESIGN.md, section 3: hit rates of the first 30,000 tokens, by slots in percent.
TABLE = [
    ("gpt-oss-20b", 25, {"lru": 0.671, "lrfu:16": 0.703, "lfu": 0.650}),
    ("gpt-oss-20b", 37.5, {"lru": 0.811, "lrfu:16": 0.835, "lfu": 0.789}),
    ("gpt-oss-20b", 50, {"lru": 0.898, "lrfu:16": 0.913, "lfu": 0.882}),
    ("olmoe-1b-7b", 25, {"lru": 0.628, "lrfu:16": 0.668, "lfu": 0.619}),
    ("olmoe-1b-7b", 37.5, {"lru": 0.751, "lrfu:16": 0.786, "lfu": 0.725}),
    ("olmoe-1b-7b", 50, {"lru": 0.843, "lrfu:16": 0.869, "lfu": 0.805}),
]


@pytest.fixture(scope="module")
def traces(shared):
    return {
        name: Trace.read(shared / "traces" / f"{name}.decode.npz").first(30_000)
        for name in ("gpt-oss-20b", "olmoe-1b-7b")
    }


def made_up(experts, n_experts):
    experts = np.asarray(experts, np.int32)
    return Trace(experts, np.array([0, len(experts)]), n_experts)


@pytest.mark.parametrize(("name", "percent", "rates"), TABLE)
def test_hit_rates_of_real_traces_are_those_of_the_table(traces, name, percent, rates):
    trace = traces[name]
    n_slots = int(trace.n_experts * percent / 100)
    for policy, rate in rates.items():
        assert simulate(trace, n_slots, Policy.parse(policy)).hit_rate == pytest.approx(rate, abs=0.002)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "olmoe-1b-7b"])
def test_four_rows_in_a_quarter_of_the_slots_overflow_in_almost_every_request(traces, name):
    trace = traces[name].first(8_000)
    counts = simulate(trace, trace.n_experts // 4, Policy(), rows=4)
    assert sum(counts.overflows) > 0.95 * sum(counts.requests)


def test_one_more_expert_than_slots_in_turn_never_hits_with_lru():
    trace = made_up((np.arange(900) % 9)[:, None, None], 9)
    assert simulate(trace, 8, Policy.parse("lru")).hit_rate == 0


def test_a_constant_token_misses_only_at_first():
    trace = made_up(np.tile(np.arange(8), (1000, 1, 1)), 64)
    assert simulate(trace, 8, Policy.parse("lru")).hit_rate == pytest.approx(0.999)


def test_uniform_picks_hit_as_often_as_experts_have_slots():
    trace = made_up(np.random.default_rng(0).integers(0, 128, (20_000, 1, 1)), 128)
    assert simulate(trace, 64, Policy.parse("lru")).hit_rate == pytest.approx(0.498, abs=0.008)


def test_no_slots_never_hit_and_all_slots_miss_each_expert_once():
    rng = np.random.default_rng(0)
    trace = made_up([[rng.permutation(12)[:3] for _ in range(2)] for _ in range(200)], 12)
    none, everything = (simulate(trace, n, Policy()) for n in (0, 12))
    assert none.hits == (0, 0)
    assert none.overflows == none.misses == (600, 600)
    assert everything.misses == (12, 12)
    assert everything.overflows == (0, 0)


def marks_of(row, offsets):
    """The row mask of a request of those tokens."""
    return np.where(row < 0, PADDING, np.where(np.isin(row, offsets[:-1]), BEGINS, REAL)).astype(np.int32)


@pytest.mark.parametrize("setting", ["lrfu:16", "product", "lru", "lfu", "static"])
def test_a_batch_is_counted_as_the_reference_counts_it(setting):
    rng = np.random.default_rng(1)
    experts = np.array([[rng.permutation(16)[:4] for _ in range(2)] for _ in range(150)], np.int32)
    trace = Trace(experts, np.array([0, 40, 60, 90, 91, 150]), 16)
    counts = simulate(trace, [6, 9], Policy.parse(setting), rows=3)
    for layer, n_slots in enumerate((6, 9)):
        state = LayerState(Policy.parse(setting), 16, n_slots, 3)
        decisions = [
            state.request(np.where(row[:, None] >= 0, experts[row, layer], 0), marks_of(row, trace.offsets))
            for row in batch_tokens(trace.offsets, 3)
        ]
        assert counts.hits[layer] == sum(decision.hits for decision in decisions)
        assert counts.misses[layer] == sum(decision.misses for decision in decisions)
        assert counts.overflows[layer] == sum(decision.overflows for decision in decisions)
        assert counts.requests[layer] == len(decisions)


def test_answers_join_the_row_that_is_free_first():
    assert batch_tokens(np.array([0, 3, 4, 6]), 2).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert batch_tokens(np.array([0, 1]), 2).tolist() == [[0, -1]]


def test_a_single_row_runs_through_all_tokens_in_order():
    assert batch_tokens(np.array([0, 2, 5]), 1)[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_trace_without_tokens_has_no_hit_rate():
    counts = simulate(made_up(np.zeros((0, 2, 1)), 4), 2, Policy())
    assert counts.hit_rate is None
    assert counts.layer_hit_rates == (None, None)


@pytest.mark.parametrize(("n_slots", "rows"), [(5, 1), (-1, 1), ([1], 1), (2, 0)])
def test_impossible_arguments_are_refused(n_slots, rows):
    with pytest.raises(InputError, match="give"):
        simulate(made_up(np.zeros((1, 2, 1)), 4), n_slots, Policy(), rows)
