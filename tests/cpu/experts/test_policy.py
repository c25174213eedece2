from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.errors import InputError
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import POLICIES, Policy
from hotset.experts.request import compiled_request, request
from hotset.kernels.product import RECENT
from hotset.kernels.rows import BEGINS, PADDING, REAL

SETTINGS = ("lrfu:16", "lrfu:0.5", "product", "lru", "lfu", "static")


class Model:
    """The policy once more, as a reader would say it: sets, sorting, and whole arrays of scores."""

    def __init__(self, policy, n_experts, n_slots):
        self.policy, self.n_slots, self.step = policy, n_slots, 0
        self.score = np.zeros(n_experts, policy.kind.score_type)
        self.recent, self.longer, self.last = np.zeros((3, n_experts), np.float32)
        self.slot = {e: e for e in range(n_slots)} if policy.name == "static" else {}

    def request(self, picks, real):
        rows = picks[real != 0].tolist()
        if not rows:
            return {}, []
        self.step += 1
        counts = np.bincount(np.concatenate(rows).astype(int), minlength=self.score.size)
        if self.policy.name == "lrfu":
            self.score = self.score * np.float32(2 ** (-len(rows) / self.policy.half_life)) + counts.astype(np.float32)
        elif self.policy.name == "product":
            self.multiply(counts, len(rows), begins=self.step > 1 and set(real.tolist()) <= {PADDING, BEGINS})
        elif self.policy.name == "lfu":
            self.score = self.score + counts.astype(np.int32)
        elif self.policy.name == "lru":
            self.score = np.where(counts > 0, np.int32(self.step), self.score)
        needed = list(dict.fromkeys(e for row in rows for e in row))
        missing = [e for e in needed if e not in self.slot]
        for e in missing:
            self.admit(e, needed)
        overflow = [e for e in missing if e not in self.slot]
        places = {e: self.n_slots + overflow.index(e) if e in overflow else self.slot[e] for e in needed}
        return places, missing

    def multiply(self, counts, n, *, begins):
        uses = counts.astype(np.float32)
        if begins:
            self.recent, self.longer = np.zeros_like(self.recent), self.longer / np.float32(8)
        fades = [np.float32(2 ** (-n / half_life)) for half_life in (16, 128, 6)]
        self.recent = self.recent * fades[0] + uses
        self.longer = self.longer * fades[1] + uses
        self.last = np.where(counts > 0, np.float32(1), self.last * fades[2])
        self.score = self.recent * self.last * (self.longer + np.float32(0.375))

    def admit(self, e, needed):
        empty = sorted(set(range(self.n_slots)) - set(self.slot.values()))
        victims = sorted((self.score[v], v) for v in self.slot if v not in needed)
        if self.policy.name == "static":
            return
        if empty:
            self.slot[e] = empty[0]
        elif victims:
            self.slot[e] = self.slot.pop(victims[0][1])


@st.composite
def histories(draw):
    n_experts = draw(st.integers(1, 12))
    n_slots = draw(st.integers(0, n_experts))
    k = draw(st.integers(1, min(n_experts, 6)))
    row = st.permutations(range(n_experts)).map(lambda order: order[:k])
    batch = st.lists(st.tuples(row, st.sampled_from((REAL, REAL, BEGINS, BEGINS, PADDING))), min_size=1, max_size=4)
    return n_experts, n_slots, draw(st.lists(batch, min_size=1, max_size=12))


def arrays(batch):
    return np.array([row for row, _ in batch], np.int32), np.array([mark for _, mark in batch], np.int32)


@pytest.mark.parametrize("setting", SETTINGS)
@settings(max_examples=60, deadline=None)
@given(histories())
def test_plain_and_compiled_decide_as_the_model_does(setting, history):
    n_experts, n_slots, batches = history
    policy = Policy.parse(setting)
    model = Model(policy, n_experts, n_slots)
    plain = LayerState(policy, n_experts, n_slots, 4)
    compiled = LayerState(policy, n_experts, n_slots, 4, run=compiled_request())
    for batch in batches:
        picks, real = arrays(batch)
        places, missing = model.request(picks, real)
        for state in (plain, compiled):
            decision = state.request(picks, real)
            state.check()
            expected = [[places[e] if mark != PADDING else -1 for e in row] for row, mark in batch]
            assert decision.location.tolist() == expected
            assert decision.fetch_expert.tolist() == missing
            assert decision.fetch_location.tolist() == [places[e] for e in missing]
            assert decision.misses == len(missing)
            assert decision.hits == len(places) - len(missing)
            assert decision.overflows == sum(place >= n_slots for place in places.values())
            assert state.score.tobytes() == model.score.tobytes()
            assert {e: s for e, s in enumerate(state.slot_of_expert.tolist()) if s >= 0} == model.slot


@pytest.mark.parametrize("setting", SETTINGS)
@settings(max_examples=60, deadline=None)
@given(histories())
def test_held_experts_stay_where_they_are(setting, history):
    n_experts, n_slots, batches = history
    state = LayerState(Policy.parse(setting), n_experts, n_slots, 4)
    for batch in batches:
        picks, real = arrays(batch)
        before = state.slot_of_expert.copy()
        state.request(picks, real)
        held = np.unique(picks[real != 0])
        stayed = held[before[held] >= 0]
        assert np.array_equal(state.slot_of_expert[stayed], before[stayed])
        assert np.count_nonzero(state.slot_of_expert >= 0) <= n_slots


@pytest.mark.parametrize("setting", ["lru", "lfu", "lrfu:16", "product"])
def test_a_fresh_expert_is_not_the_victim_of_its_own_request(setting):
    # CASES row 40: under LFU a fresh entry has the lowest score of all.
    state = LayerState(Policy.parse(setting), 12, 4, 1)
    for needed in ((4, 5, 6, 7), (4, 5, 6, 7), (4, 5, 6, 7), (0, 1, 2, 3), (8, 9, 10, 11)):
        state.request(np.array([needed], np.int32))
        state.check()
        assert sorted(state.expert_of_slot.tolist()) == list(needed)


def test_equal_scores_evict_the_lowest_index():
    state = LayerState(Policy.parse("lfu"), 6, 3, 1)
    for e in (4, 2, 3):
        state.request(np.array([[e]], np.int32))
    assert state.expert_of_slot.tolist() == [4, 2, 3]
    state.request(np.array([[5]], np.int32))
    assert state.expert_of_slot.tolist() == [4, 5, 3]


def test_no_slots_send_every_expert_to_the_overflow_area():
    state = LayerState(Policy(), 8, 0, 2)
    decision = state.request(np.array([[3, 1], [1, 7]], np.int32))
    assert decision.location.tolist() == [[0, 1], [1, 2]]
    assert (decision.hits, decision.misses, decision.overflows) == (0, 3, 3)


def test_a_slot_for_every_expert_never_evicts():
    rng = np.random.default_rng(0)
    state = LayerState(Policy(), 8, 8, 1)
    decisions = [state.request(rng.permutation(8)[None, :3].astype(np.int32)) for _ in range(50)]
    assert sum(decision.misses for decision in decisions) == 8
    assert sum(decision.overflows for decision in decisions) == 0


def test_a_request_of_padding_changes_nothing():
    state = LayerState(Policy.parse("lru"), 4, 2, 2)
    state.request(np.array([[0], [3]], np.int32))
    before = state.step.copy(), state.score.copy(), state.slot_of_expert.copy()
    decision = state.request(np.array([[1], [2]], np.int32), np.zeros(2, np.int32))
    assert decision.location.tolist() == [[-1], [-1]]
    assert (decision.hits, decision.misses) == (0, 0)
    for old, new in zip(before, (state.step, state.score, state.slot_of_expert), strict=True):
        assert np.array_equal(old, new)


def test_scores_fade_to_the_smallest_number_and_not_below_zero():
    # 149 half-lives reach the smallest float32; a flush to zero on one side alone would change victims.
    states = [LayerState(Policy.parse("lrfu:16"), 2, 1, 1, run=run) for run in (request, compiled_request())]
    for _ in range(2500):
        for state in states:
            state.request(np.array([[0]], np.int32))
    for state in states:
        state.request(np.array([[1]], np.int32))
        for _ in range(2500):
            state.request(np.array([[0]], np.int32))
        assert 0 < state.score[1] < np.finfo(np.float32).tiny
    assert states[0].score.tobytes() == states[1].score.tobytes()


def test_static_keeps_what_it_started_with():
    state = LayerState(Policy.parse("static"), 6, 2, 1)
    for e in (0, 1, 5, 4, 5):
        state.request(np.array([[e]], np.int32))
    assert state.expert_of_slot.tolist() == [0, 1]
    state.seed([5, 3])
    assert state.expert_of_slot.tolist() == [5, 3]


@pytest.mark.parametrize("experts", [[1, 1], [0, 1, 2], [-1], [6]])
def test_impossible_seeds_are_refused(experts):
    with pytest.raises(InputError, match="at most 2 distinct numbers below 6"):
        LayerState(Policy(), 6, 2, 1).seed(experts)


def test_a_broken_state_is_caught():
    state = LayerState(Policy(), 4, 2, 1)
    state.slot_of_expert[:2] = 1
    with pytest.raises(AssertionError, match="slots taken"):
        state.check()


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("lrfu", Policy("lrfu", 16.0)),
        ("LRFU:64", Policy("lrfu", 64.0)),
        ("lrfu:2.5", Policy("lrfu", 2.5)),
        ("Product", Policy("product", None)),
        (" lru ", Policy("lru", None)),
        ("lfu", Policy("lfu", None)),
        ("static", Policy("static", None)),
    ],
)
def test_policies_are_read_and_written_back(text, policy):
    assert Policy.parse(text) == policy
    assert Policy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    ["", "belady", "16", "lru:4", "product:16", "lrfu:", "lrfu:0", "lrfu:-1", "lrfu:nan", "lrfu:1e9", "lrfu:16:2"],
)
def test_unknown_policies_are_refused(text):
    with pytest.raises(InputError, match="cache policy"):
        Policy.parse(text)


def test_an_unknown_policy_is_told_what_exists():
    with pytest.raises(InputError, match="lrfu, product, lru, lfu, static"):
        Policy.parse("arc")


def test_the_decay_of_one_row_is_that_of_the_half_life():
    table = Policy.parse("lrfu:16").decay_table(16)
    assert table.dtype == np.float32
    assert table.shape == (17, 1)
    assert table[0] == 1
    assert table[1] == np.float32(2 ** (-1 / 16))
    assert table[16] == np.float32(0.5)


def test_product_fades_with_three_half_lives():
    table = Policy.parse("product").decay_table(128)
    assert (table[16, 0], table[128, 1], table[6, 2]) == (0.5, 0.5, 0.5)


def test_an_answer_begins_where_every_real_row_begins_one():
    state = LayerState(Policy.parse("product"), 6, 3, 3)

    def recent_after(*marks):
        state.scores[:] = 0
        state.scores[RECENT, 5] = 1
        state.request(np.array([[0], [1], [2]], np.int32), np.array(marks, np.int32))
        return state.scores[RECENT, 5]

    assert (
        recent_after(BEGINS, BEGINS, BEGINS) > 0
    )  # nothing was before the first request of all: what a warm start gave stays
    assert recent_after(REAL, REAL, REAL) > 0
    assert recent_after(BEGINS, REAL, BEGINS) > 0  # a newcomer does not cost the others what they keep warm
    assert recent_after(BEGINS, PADDING, PADDING) == 0
    assert recent_after(BEGINS, BEGINS, PADDING) == 0


def test_a_border_says_nothing_to_policies_that_forget_nothing():
    rng = np.random.default_rng(3)
    history = [rng.permutation(12)[None, :3].astype(np.int32) for _ in range(60)]
    for setting in ("lrfu:16", "lru", "lfu"):
        states = [LayerState(Policy.parse(setting), 12, 5, 1) for _ in range(2)]
        for n, picks in enumerate(history):
            states[0].request(picks)
            states[1].request(picks, np.array([BEGINS if n % 7 == 0 else REAL], np.int32))
        assert states[0].score.tobytes() == states[1].score.tobytes()
        assert np.array_equal(states[0].slot_of_expert, states[1].slot_of_expert)


def test_codes_are_unique():
    assert len({kind.code for kind in POLICIES.values()}) == len(POLICIES)
