"""Warm start on the CPU engine, whose counted cache begins as a GPU's would."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import hotset
from hotset.config import SamplingParams
from hotset.engine import warm_start as module
from hotset.engine.job import Finished, Job
from hotset.engine.scheduler import Scheduler
from hotset.engine.warm_start import WarmStart, rows_of, sampled_curves
from hotset.experts.heat import heat_path
from hotset.experts.host_cache import HostCache
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape
from hotset.experts.trace import Trace
from hotset.kernels.product import SCORE
from hotset.lab.study import Study

PROMPT = "The package manager"
FIRST = 64


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Profiles in a folder of the test's own; machine code stays where it is."""
    monkeypatch.setattr("hotset.experts.heat.cache_root", lambda: tmp_path)


def demo(**options):
    return hotset.load("demo", device="cpu", **options)


def learned(n: int = 2, **options):
    """Profiles of some answers of the demo model."""
    engine = demo(warm_start=True, **options)
    for seed in range(n):
        engine.generate(PROMPT, max_tokens=40, seed=seed)
    engine.warm_start.save()
    return engine


def test_a_second_start_finds_the_slots_filled():
    assert learned().warm_start.filled == 0
    engine = demo(warm_start=True)
    assert engine.warm_start.began_with == 2
    assert engine.warm_start.filled == sum(engine.runner.shape.n_slots)
    assert engine.stats().hits == engine.stats().misses == 0


def test_what_is_said_does_not_depend_on_it():
    cold = demo().generate(PROMPT, max_tokens=30, seed=5)
    learned()
    warm = demo(warm_start=True, slots_from_profile=True)
    assert warm.generate(PROMPT, max_tokens=30, seed=5).tokens == cold.tokens
    ids = list(range(10, 40))
    assert np.array_equal(warm.logits(ids), demo().logits(ids))


def test_the_first_tokens_hit_more():
    def first_hits(engine):
        engine.generate(PROMPT, max_tokens=8, seed=9)
        return engine.stats().prompt.hits

    cold = first_hits(demo())
    learned()
    assert first_hits(demo(warm_start=True)) > cold


def test_without_it_nothing_is_read_or_written(tmp_path):
    engine = demo()
    engine.generate(PROMPT, max_tokens=40)
    engine.note_heat()
    assert engine.warm_start is None
    assert not list(tmp_path.iterdir())


def test_an_engine_that_is_let_go_leaves_what_it_learned():
    engine = demo(warm_start=True)
    engine.generate(PROMPT, max_tokens=40)
    del engine
    gc.collect()
    assert demo(warm_start=True).warm_start.began_with == 1


def test_a_program_that_ends_leaves_what_it_learned(tmp_path):
    code = f"import hotset; engine = hotset.load('demo', device='cpu', warm_start=True); engine.generate({PROMPT!r}, max_tokens=40)"
    # Machine code is found where it is; the profile lies in a folder of the test's own.
    code = f"import pathlib, hotset.experts.heat as heat; heat.cache_root = lambda: pathlib.Path({str(tmp_path)!r}); {code}"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert demo(warm_start=True).warm_start.began_with == 1


def test_a_short_answer_says_too_little():
    engine = demo(warm_start=True)
    engine.generate(PROMPT[:3], max_tokens=2)
    assert engine.warm_start.heat.samples == 0


def test_a_cache_that_was_emptied_is_counted_anew():
    engine = learned()
    engine.runner.reset_cache()
    engine.generate(PROMPT, max_tokens=40)
    assert engine.warm_start.heat.samples == 3


def test_a_stop_and_a_close_are_ends_too():
    engine = demo(warm_start=True)
    stream = engine.stream(PROMPT, max_tokens=60, seed=1)
    for _ in range(30):
        next(stream)
    stream.close()
    assert engine.warm_start.heat.samples == 1


def test_product_begins_warm_and_learns():
    learned()
    engine = demo(warm_start=True, policy="product")
    assert engine.warm_start.filled > 0
    scores, _ = engine.runner.cache.scores()
    assert all((layer[SCORE] > 0).any() for layer in scores)
    engine.generate(PROMPT, max_tokens=40)
    assert engine.warm_start.heat.samples == 3


def test_static_placement_is_left_as_it_is():
    learned()
    engine = demo(warm_start=True, policy="static")
    assert engine.warm_start.filled == 0
    engine.generate(PROMPT, max_tokens=40)
    assert engine.warm_start.heat.samples == 2


def test_a_server_keeps_what_it_learned_while_it_runs(monkeypatch):
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)
    engine = demo(warm_start=True)
    engine.generate(PROMPT, max_tokens=40)
    assert len(list(heat_path("x").parent.iterdir())) == 1


def test_a_profile_that_cannot_be_kept_stops_nothing(monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(module, "keep_heat", refuse)
    learned()


def test_slots_are_dealt_by_what_earlier_runs_picked():
    first = learned(n=4, slots_from_profile=True)
    equal = first.runner.shape.n_slots
    assert not first.warm_start.dealt
    engine = demo(slots_from_profile=True)
    dealt, span = engine.runner.shape.n_slots, engine.runner.shape.span_bytes
    assert engine.warm_start.dealt
    assert dealt != equal
    assert sum(n * b for n, b in zip(dealt, span, strict=True)) <= sum(n * b for n, b in zip(equal, span, strict=True))
    assert engine.memory.n_slots == dealt
    assert engine.warm_start.filled == 0  # warm start itself was not asked for


def test_recorded_steps_become_tokens_and_padding_goes():
    ring = np.full((3, 2, 4, 2), -1, np.int16)
    ring[0, :, 0] = [[1, 2], [3, 4]]
    ring[1, :, :2] = [[[5, 6], [7, 8]], [[1, 3], [2, 4]]]
    assert rows_of(ring).tolist() == [[[1, 2], [3, 4]], [[5, 6], [1, 3]], [[7, 8], [2, 4]]]


def test_sampled_curves_pass_through_the_replayed_ones():
    rng = np.random.default_rng(0)
    experts = np.argsort(rng.random((200, 2, 64)), axis=-1)[..., :4].astype(np.int16)
    trace = Trace(experts, np.array([0, 200]), 64)
    sampled, full = sampled_curves(trace), Study(trace).curves()
    assert np.array_equal(sampled[:, ::4], full[:, ::4])
    assert np.abs(sampled - full).max() <= 0.03 * 200 * 4


def test_slots_without_a_profile_stay_equal():
    assert WarmStart("a" * 64, 2, 8, 2).deal((3, 3), (256, 256)) == (3, 3)


def test_a_cache_begins_with_the_hottest_and_their_scores():
    warm = WarmStart("a" * 64, 1, 6, 2)
    warm.heat.note(np.array([[0.0, 0.1, 0.4, 0.3, 0.2, 0.0]]))
    cache = HostCache(CacheShape((256,), (6,), (3,), 2, 1), Policy.parse("lrfu:16"))
    warm.fill(cache)
    state = cache.state(0)
    state.check()
    assert state.expert_of_slot.tolist() == [2, 3, 4]
    # The coldest of them leaves first.
    cache.lookup(0, np.array([[0, 2]], np.int32))
    assert sorted(cache.state(0).expert_of_slot.tolist()) == [0, 2, 3]


def test_the_first_tokens_of_held_text_reach_most_of_the_steady_state(shared):
    path = shared / "models" / "lab-moe-Q4_K_M.gguf"
    engine = hotset.load(path, device="cpu", expert_cache="25%", warm_start=True)
    ids = engine.tokenize((shared / "models" / "held.txt").read_text(encoding="utf-8")[:40_000])
    for start in (1000, 2500, 4000):
        engine.session(201).feed(ids[start : start + 200])
        engine.note_heat()

    def hit_rate(tokens: list[int]) -> float:
        """Token by token."""
        engine.reset_stats()
        for token in tokens:
            session.feed([token])
        return engine.stats().prompt.hit_rate

    engine.runner.reset_cache()
    session = engine.session(200)
    cold = hit_rate(ids[:FIRST])
    engine.runner.reset_cache()
    engine.warm_start.fill(engine.runner.cache)
    session = engine.session(200)
    warm, steady = hit_rate(ids[:FIRST]), hit_rate(ids[FIRST : 3 * FIRST])
    assert warm >= 0.8 * steady
    assert warm > cold


def test_a_server_learns_from_every_answer():
    engine = demo(warm_start=True, n_parallel=2)
    scheduler = Scheduler(engine, n_parallel=2, max_waiting=8)
    heard: list[object] = []
    jobs = [Job(engine.tokenize(text), SamplingParams(max_tokens=30), 1, heard.append) for text in (PROMPT, "import")]
    scheduler.submit(jobs)
    while scheduler.n_running or scheduler.n_waiting:
        scheduler.turn()
    assert sum(isinstance(event, Finished) for event in heard) == 2
    assert engine.warm_start.heat.samples >= 1
