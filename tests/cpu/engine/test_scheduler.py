"""The scheduler: fair, bounded, cancelled at once, and one job's answer never another's business."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.config import SamplingParams
from hotset.engine.job import Failed, Finished, Job, Token, logprob
from hotset.engine.scheduler import PATIENCE, Scheduler
from hotset.errors import BusyError, ContextError, EngineStoppedError, HotsetError, InputError
from scripted import CHUNK, scripted_engine


class Heard(list):
    """Events of a job."""

    @property
    def tokens(self) -> list[int]:
        return [e.token for e in self if isinstance(e, Token)]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self if not isinstance(e, Failed))

    @property
    def end(self) -> Finished | Failed | None:
        return self[-1] if self and not isinstance(self[-1], Token) else None


def job(prompt, n=4, *, seed=1, **settings) -> Job:
    heard = Heard()
    made = Job(list(prompt), SamplingParams(max_tokens=n, **settings), seed, heard.append)
    made.heard = heard
    return made


def scheduler(n_parallel=2, max_waiting=8, n_ctx=64, **options) -> Scheduler:
    return Scheduler(scripted_engine(n_ctx), n_parallel=n_parallel, max_waiting=max_waiting, **options)


def run(s: Scheduler, *jobs: Job) -> None:
    s.submit(jobs)
    finish(s)


def finish(s: Scheduler) -> None:
    for _ in range(10_000):
        if not (s.n_running or s.n_waiting):
            return
        s.turn()
    raise AssertionError("a job is stuck")


def prompt(n: int, first: int = 500) -> range:
    return range(first, first + n)


def test_an_answer_is_the_same_alone_and_beside_others():
    asked = [(prompt(3 + 5 * i, 400 + i), 5 + i, i) for i in range(7)]
    together = [job(p, n, seed=seed) for p, n, seed in asked]
    run(scheduler(n_parallel=3), *together)
    for (p, n, seed), beside in zip(asked, together, strict=True):
        alone = job(p, n, seed=seed)
        run(scheduler(), alone)
        assert alone.heard.tokens == beside.heard.tokens
        assert len(alone.heard.tokens) == n
        assert beside.heard.end.reason == "length"


def test_a_prompt_goes_on_by_a_chunk_between_two_steps_of_others():
    s = scheduler()
    short, long = job(prompt(2), 20), job(prompt(50, 900), 1)
    s.submit([short])
    s.turn()
    s.submit([long])
    for n in range(1, 5):
        s.turn()
        assert len(short.heard.tokens) == 1 + n
        assert s.engine.scripted.fed[-1] == (1, CHUNK)
    finish(s)


def test_a_short_prompt_overtakes_a_long_one_but_does_not_starve_it():
    s = scheduler(n_parallel=8, max_waiting=64, n_ctx=400)
    long = job(prompt(300), 1)
    s.submit([long])
    s.turn()
    short = job(prompt(3, 2000), 1)
    s.submit([short])
    s.turn()
    assert short.heard.end
    for i in range(200):  # a short one more for every turn
        if not long.heard.end:
            s.submit([job(prompt(3, 1000 + 3 * i), 1)])
            s.turn()
    assert long.heard.end
    chunks = [seq for seq, n in s.engine.scripted.fed if n == CHUNK]
    assert len(s.engine.scripted.fed) <= (PATIENCE + 2) * len(chunks)


def test_jobs_begin_in_the_order_in_which_they_came():
    s = scheduler(n_parallel=1)
    order = []
    jobs = [job(prompt(3, 400 + 10 * i), 2) for i in range(5)]
    for i, one in enumerate(jobs):
        one.tell = lambda event, i=i: order.append(i) if isinstance(event, Finished) else None
    run(s, *jobs)
    assert order == [0, 1, 2, 3, 4]


def test_beyond_the_bound_a_job_is_refused_with_a_time_to_come_again_and_nothing_else_suffers():
    s = scheduler(n_parallel=1, max_waiting=2)
    kept = [job(prompt(3), 3) for _ in range(3)]
    s.submit(kept)
    with pytest.raises(BusyError) as refused:
        s.submit([job(prompt(3), 3)])
    assert refused.value.retry_after_s >= 1
    finish(s)
    assert all(one.heard.end.reason == "length" for one in kept)


def test_jobs_are_queued_all_or_none():
    s = scheduler(n_parallel=1, max_waiting=2)
    with pytest.raises(BusyError):
        s.submit([job(prompt(3)) for _ in range(4)])
    assert s.n_waiting == 0


@pytest.mark.parametrize("after", range(1, 8))
def test_a_cancelled_job_gets_no_further_step_or_chunk(after):
    s = scheduler()
    gone, other = job(prompt(20), 30), job(prompt(20, 900), 30)
    s.submit([gone, other])
    for _ in range(after):
        s.turn()
    s.cancel(gone)
    heard, fed = len(gone.heard), [f for f in s.engine.scripted.fed if f[0] == 0]
    s.turn()
    assert len(gone.heard) == heard
    assert [f for f in s.engine.scripted.fed if f[0] == 0] == fed
    finish(s)
    assert not gone.heard.end
    assert len(other.heard.tokens) == 30
    assert s.totals.cancelled == 1


def test_a_cancelled_job_that_waits_never_begins():
    s = scheduler(n_parallel=1)
    first, waiting, last = (job(prompt(3, 400 + 100 * i), 3) for i in range(3))
    s.submit([first, waiting, last])
    s.turn()
    s.cancel(waiting)
    finish(s)
    assert waiting.heard == []
    assert len(s.engine.scripted.fed) == 2
    assert last.heard.end.reason == "length"


def test_a_common_beginning_is_computed_once():
    s = scheduler()
    run(s, job(prompt(40), 2))
    again = job([*prompt(35), 7, 8], 2)
    run(s, again)
    assert again.heard.end.usage.cached_tokens == 35
    assert s.engine.scripted.fed[-1] == (0, 2)
    alone = job([*prompt(35), 7, 8], 2)
    run(scheduler(), alone)
    assert alone.heard.tokens == again.heard.tokens


def test_of_the_same_prompt_again_the_last_token_is_computed():
    s = scheduler()
    run(s, job(prompt(20), 1), job(prompt(20), 1))
    again = job(prompt(20), 1)
    run(s, again)
    assert again.heard.end.usage.cached_tokens == 19


def test_jobs_with_one_prompt_share_its_computation():
    s = scheduler(n_parallel=4)
    four = [job(prompt(40), 3, seed=i) for i in range(4)]
    run(s, *four)
    assert sum(n for _, n in s.engine.scripted.fed) == 40 + 3
    assert [one.heard.end.usage.cached_tokens for one in four] == [0, 39, 39, 39]


def test_a_short_common_beginning_does_not_throw_a_conversation_away():
    s = scheduler()
    run(s, job(prompt(40), 2))
    run(s, job([*prompt(4), 7, 8, 9, 10], 2))
    again = job([*prompt(40), 5], 2)
    run(s, again)
    assert again.heard.end.usage.cached_tokens == 40


def test_tokens_that_were_drawn_are_taken_over_unless_that_is_off():
    for reuse_drawn in (True, False):
        s = scheduler(reuse_drawn=reuse_drawn)
        first = job(prompt(10), 6)
        run(s, first)
        turn = job([*prompt(10), *first.heard.tokens, 3], 2)
        run(s, turn)
        assert turn.heard.end.usage.cached_tokens == (16 if reuse_drawn else 10)


@pytest.mark.parametrize(("n", "max_tokens", "expected"), [(63, None, 1), (60, None, 4), (60, 2, 2), (5, 0, 0)])
def test_an_answer_ends_with_length_where_the_context_or_the_limit_is_reached(n, max_tokens, expected):
    one = job(prompt(n), max_tokens)
    run(scheduler(), one)
    assert len(one.heard.tokens) == expected
    assert one.heard.end.reason == "length"


@pytest.mark.parametrize("n", [64, 65, 1000])
def test_a_prompt_without_room_for_an_answer_is_refused_with_both_numbers(n):
    with pytest.raises(ContextError) as refused:
        scheduler().submit([job(prompt(n))])
    assert (refused.value.n_prompt_tokens, refused.value.n_ctx) == (n, 64)


def test_an_empty_prompt_and_a_bias_beyond_the_vocabulary_are_refused():
    s = scheduler()
    for wrong in (job([]), job(prompt(3), logit_bias={10**6: 1.0})):
        with pytest.raises(InputError):
            s.submit([wrong])
    assert s.n_waiting == 0


def test_an_error_of_one_job_is_its_own():
    s = scheduler()
    bad, good = job(prompt(3), 5, seed=666), job(prompt(3, 900), 5)
    run(s, bad, good)
    assert isinstance(bad.heard.end, Failed)
    assert len(good.heard.tokens) == 5


def test_a_job_that_cannot_begin_is_an_error_of_its_own():
    s = scheduler()
    bad, good = job(prompt(3), 5), job(prompt(3, 900), 5)
    object.__setattr__(bad.params, "stop", ("",))  # past the check of settings
    run(s, bad, good)
    assert isinstance(bad.heard.end.error, InputError)
    assert len(good.heard.tokens) == 5


def test_a_stop_string_ends_the_answer_and_is_not_told():
    whole = job(prompt(3), 12)
    run(scheduler(), whole)
    text = whole.heard.text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = job(prompt(3), 12, stop=(stop,))
    run(scheduler(), cut)
    assert cut.heard.text == text[: text.index(stop)]
    assert (cut.heard.end.reason, cut.heard.end.stop) == ("stop", stop)


def test_calls_run_between_rounds_with_nothing_under_way_and_their_errors_come_back():
    s = scheduler()
    s.submit([job(prompt(3), 5)])
    s.turn()
    good, bad = s.call(lambda: 42), s.call(lambda: 1 / 0)
    s.turn()
    assert good.result(0) == 42
    assert isinstance(bad.exception(0), ZeroDivisionError)
    assert s.engine.scripted.settled == 2
    finish(s)


def test_what_runs_and_waits_fails_when_the_scheduler_stops_and_nothing_more_is_taken():
    s = scheduler(n_parallel=1)
    jobs = [job(prompt(3), 5) for _ in range(3)]
    s.submit(jobs)
    s.turn()
    s.stop("the server is shutting down")
    assert all(isinstance(one.heard.end, Failed) for one in jobs)
    with pytest.raises(EngineStoppedError):
        s.submit([job(prompt(3))])


def test_after_a_restart_nothing_of_before_is_used():
    s = scheduler()
    broken = job(prompt(30), 5)
    s.submit([broken])
    s.turn()
    s.restart()
    assert isinstance(broken.heard.end, Failed)
    again = job(prompt(30), 5)
    run(s, again)
    assert again.heard.end.usage.cached_tokens == 0


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_comes_and_goes_every_answer_is_the_one_it_has_alone(data):
    n_parallel = data.draw(st.integers(1, 4))
    s = scheduler(n_parallel=n_parallel, max_waiting=100)
    jobs = []
    for _ in range(data.draw(st.integers(1, 12))):
        start, n = data.draw(st.sampled_from([400, 403, 500])), data.draw(st.integers(1, 40))
        jobs.append(job(prompt(n, start), data.draw(st.integers(0, 20)), seed=data.draw(st.integers(0, 2))))
        s.submit(jobs[-1:])
        for _ in range(data.draw(st.integers(0, 3))):
            s.turn()
        if data.draw(st.integers(0, 4)) == 0:
            s.cancel(data.draw(st.sampled_from(jobs)))
    finish(s)
    for one in jobs:
        expected = job(one.prompt, one.params.max_tokens, seed=one.seed)
        run(scheduler(), expected)
        tokens = one.heard.tokens
        assert tokens == expected.heard.tokens if one.heard.end else tokens == expected.heard.tokens[: len(tokens)]
        assert one.heard.end or one.cancelled


def test_logprobs_are_log_softmax_sorted_and_sum_to_one():
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    logits[3] = np.nan
    logits[4] = -np.inf
    found = logprob(logits, 7, 60)
    values = [v for _, v in found.top]
    assert values == sorted(values, reverse=True)
    assert np.exp([v for v in values if np.isfinite(v)]).sum() == pytest.approx(1)
    assert dict(found.top)[7] == found.value
    assert dict(found.top)[3] == -np.inf
    assert logprob(np.full(3, np.nan, np.float32), 0, 2).value == -np.inf
    assert issubclass(BusyError, HotsetError)


def test_the_demo_model_answers_the_same_alone_and_beside_seven_others(demo):
    texts = ["def f(x):", "The cache", "import numpy\n" * 40, "A", "A b c", "class A:", "for i in", "Once"]
    asked = [(demo.tokenize(t), 6 + i, i) for i, t in enumerate(texts)]
    s = Scheduler(demo, n_parallel=8, max_waiting=8)
    jobs = [job(p, n, seed=seed, temperature=1.0) for p, n, seed in asked]
    jobs[2].n_top = 2
    run(s, *jobs)
    for (p, n, seed), beside in zip(asked, jobs, strict=True):
        alone = demo.generate(p, max_tokens=n, seed=seed, temperature=1.0)
        assert tuple(beside.heard.tokens) == alone.tokens
        assert beside.heard.text == alone.text
    top = jobs[2].heard[0].logprob
    assert top.value <= top.top[0][1] <= 0


def test_a_reused_prefix_of_the_demo_model_changes_nothing(demo):
    s = Scheduler(demo, n_parallel=2, max_waiting=8)
    first = demo.tokenize("The library has a cache of experts. " * 10)
    run(s, job(first, 8, seed=3, temperature=1.0))
    follow = [*first, *demo.tokenize(" And then")]
    reused = job(follow, 8, seed=4, temperature=1.0)
    run(s, reused)
    assert reused.heard.end.usage.cached_tokens == len(first)
    assert tuple(reused.heard.tokens) == demo.generate(follow, max_tokens=8, seed=4, temperature=1.0).tokens


def test_resizing_the_expert_cache_under_way_changes_no_answer(fresh):
    engine = fresh()
    ids = engine.tokenize("The package")
    expected = engine.generate(ids, max_tokens=12, seed=1, temperature=1.0).tokens
    s = Scheduler(engine, n_parallel=2, max_waiting=8)
    running = job(ids, 12, seed=1, temperature=1.0)
    s.submit([running])
    counted = 0
    for size in ("100%", "10%", "off", "100%"):
        s.turn()
        done = s.call(lambda size=size: engine.resize_cache(size))
        s.turn()
        assert done.exception(0) is None
        stats = engine.stats()
        assert stats.hits + stats.misses > counted
        counted = stats.hits + stats.misses
        assert engine.memory.n_slots == engine.runner.shape.n_slots
    finish(s)
    assert tuple(running.heard.tokens) == expected


def test_waiting_ends_when_something_comes():
    s = scheduler()
    began = time.monotonic()
    s.wake()
    s.wait(30)
    s.submit([job(prompt(3))])
    s.wait(30)
    assert time.monotonic() - began < 20
