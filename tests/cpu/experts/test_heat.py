from __future__ import annotations

import os

import numpy as np
import pytest

from hotset.experts import heat as module
from hotset.experts.heat import MAX_PICKS, Heat, first_scores, heat_path, keep_heat, read_heat, shares
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy

POLICIES = ("lrfu:16", "product", "lru", "lfu")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOTSET_CACHE", str(tmp_path))


def some_heat(n_layers: int = 3, n_experts: int = 8, k: int = 2, n_tokens: int = 20) -> Heat:
    rng = np.random.default_rng(0)
    heat = Heat.empty(n_layers, n_experts)
    heat.note(rng.random((n_layers, n_experts)))
    heat.note_picks(random_picks(n_tokens, n_layers, n_experts, k))
    return heat


def random_picks(n_tokens: int, n_layers: int, n_experts: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(n_tokens)
    return np.argsort(rng.random((n_tokens, n_layers, n_experts)), axis=-1)[..., :k].astype(np.int16)


def test_what_is_kept_is_what_is_read_again():
    heat = some_heat()
    keep_heat(heat, "a" * 64)
    again = read_heat("a" * 64, 3, 8, 2)
    assert again.share == pytest.approx(heat.share, rel=1e-6)
    assert again.samples == 1
    assert np.array_equal(again.picks, heat.picks)
    assert np.array_equal(again.offsets, heat.offsets)


@pytest.mark.parametrize(
    ("name", "shape"), [("b" * 64, (3, 8, 2)), ("a" * 64, (4, 8, 2)), ("a" * 64, (3, 9, 2)), ("a" * 64, (3, 8, 3))]
)
def test_the_heat_of_another_model_counts_as_none(name, shape):
    keep_heat(some_heat(), "a" * 64)
    found = read_heat(name, *shape)
    assert found.samples == 0
    assert not found.share.any()


@pytest.mark.parametrize("cut", [0, 10, -30])
def test_a_damaged_file_counts_as_none(cut):
    keep_heat(some_heat(), "a" * 64)
    path = heat_path("a" * 64)
    path.write_bytes(path.read_bytes()[:cut])
    assert read_heat("a" * 64, 3, 8, 2).samples == 0


def test_a_pickle_is_not_run(tmp_path):
    path = heat_path("a" * 64)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        np.savez(file, head=np.array([object()], dtype=object))
    assert read_heat("a" * 64, 3, 8, 2).samples == 0


def test_of_other_models_only_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr(module, "MAX_FILES", 3)
    for i in range(6):
        name = f"{i}" * 64
        keep_heat(some_heat(), name)
        os.utime(heat_path(name), (1000 + i, 1000 + i))
    assert sorted(p.name[0] for p in heat_path("x").parent.iterdir()) == ["3", "4", "5"]


def test_the_first_sample_counts_whole_and_later_ones_less_and_less():
    heat = Heat.empty(1, 2)
    heat.note(np.array([[1.0, 0.0]]))
    assert heat.share.tolist() == [[1.0, 0.0]]
    for _ in range(500):
        heat.note(np.array([[1.0, 0.0]]))
    heat.note(np.array([[0.0, 1.0]]))
    assert heat.share[0, 1] == pytest.approx(1 - 2 ** (-1 / module.HALF_LIFE))


def test_a_layer_of_which_nothing_is_known_stays_as_it_was():
    heat = Heat.empty(2, 2)
    heat.note(np.array([[1.0, 0.0], [0.0, 0.0]]))
    heat.note(np.array([[0.0, 0.0], [0.0, 1.0]]))
    assert heat.share.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_picks_are_bounded_and_their_answers_keep_their_borders():
    heat = Heat.empty(2, 8)
    for n in (5, MAX_PICKS - 10, 30, 7):
        heat.note_picks(random_picks(n, 2, 8, 2))
    trace = heat.trace()
    assert trace.n_tokens == MAX_PICKS
    assert np.diff(trace.offsets).tolist() == [MAX_PICKS - 37, 30, 7]
    assert np.array_equal(trace.experts[-7:], random_picks(7, 2, 8, 2))


def test_without_picks_there_is_no_trace():
    heat = Heat.empty(2, 8)
    heat.note_picks(random_picks(0, 2, 8, 2))
    assert heat.trace() is None


def test_the_hottest_come_first_and_the_unused_not_at_all():
    heat = Heat(np.array([[0.0, 0.2, 0.5, 0.2, 0.1, 0.0]]), 1)
    assert heat.hottest(0, 3) == [2, 1, 3]
    assert heat.hottest(0, 6) == [2, 1, 3, 4]
    assert heat.hottest(0, 0) == []


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_used_more_and_later_is_hotter_under_every_policy(name):
    policy = Policy.parse(name)
    state = LayerState(policy, 6, 3, 1)
    for picks in ([0, 1], [0, 1], [2, 3], [2, 3], [2, 3]):
        state.request(np.array([picks], np.int32))
    (share,) = shares(policy, [state.scores], state.step)
    assert share.sum() == pytest.approx(1)
    assert share[2] == share[3] > share[0] == share[1] > share[4] == share[5] == 0


def test_static_says_nothing_of_use():
    state = LayerState(Policy.parse("static"), 6, 3, 1)
    state.request(np.array([[0, 1]], np.int32))
    assert not shares(Policy.parse("static"), [state.scores], state.step).any()


@pytest.mark.parametrize("name", POLICIES)
def test_first_scores_suit_the_policy_and_keep_the_order(name):
    policy = Policy.parse(name)
    state = LayerState(policy, 6, 3, 1)
    state.scores[:] = first_scores(policy, np.array([0.0, 0.1, 0.5, 0.3, 0.1, 0.0]), 2)
    state.seed([2, 3])
    state.check()
    assert state.score[2] >= state.score[3] >= state.score[1]


def test_a_folder_that_cannot_be_written_is_an_error_for_the_caller(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOTSET_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file"):
        keep_heat(some_heat(), "a" * 64)
    assert read_heat("a" * 64, 3, 8, 2).samples == 0
