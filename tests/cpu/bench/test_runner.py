from __future__ import annotations

import pytest

from fakes import SPAN, fake_engine
from hotset.bench.runner import LEAD, Bench, Plan, Result, Sample, Tokens, Workload
from hotset.errors import InputError


def bench(plan: Plan, **changes) -> tuple[Bench, object]:
    engine = fake_engine(**changes)
    return Bench(engine, Tokens(range(4000)), plan, engine.runner.clock), engine.runner


def sample(rate: float) -> Sample:
    return Sample(100, 100 / rate, 3, 1, 4000)


def result(*rates: float) -> Result:
    return Result(Workload("tg", 100), sample(1.0), tuple(map(sample, rates)), cold=False)


def test_prompt_and_decode_are_timed_apart():
    runs, _ = bench(Plan(200, 100, 2), prompt_s=1.0, step_s=0.02)
    pp, tg = runs.results()
    assert (pp.test.name, pp.mean) == ("pp200", 200)
    assert (tg.test.name, tg.mean) == ("tg100", pytest.approx(50))


def test_decode_counts_only_decoding():
    runs, _ = bench(Plan(0, 10, 1))
    (tg,) = runs.results()
    assert tg.hit_rate == 0.75
    assert tg.bytes_per_token == SPAN
    assert tg.samples[0].misses == 10


def test_the_first_run_on_an_empty_cache_is_reported_apart():
    runs, runner = bench(Plan(8, 0, 3))
    (pp,) = runs.results()
    assert len(pp.samples) == 3
    assert runner.calls == ["reset cache", "feed 8", "feed 8", "feed 8", "feed 8"]


def test_cold_runs_empty_the_cache_before_each():
    runs, runner = bench(Plan(8, 0, 2, cold=True))
    list(runs.results())
    assert runner.calls == ["reset cache", "feed 8"] + ["reset cache", "feed 8"] * 2


def test_warm_up_runs_every_test_and_is_timed_apart():
    runs, runner = bench(Plan(8, 4, 1), prompt_s=1.0, step_s=0.5)
    assert runs.warm_up() == 1.0 + 1.0 + 4 * 0.5
    assert runner.calls == ["feed 8", f"feed {LEAD}"]


def test_every_run_reads_another_prompt():
    runs, runner = bench(Plan(16, 0, 3))
    list(runs.results())
    prompts = [tuple(s.prompts[0]) for s in runner.sessions]
    assert len(set(prompts)) == 4


def test_an_end_token_does_not_end_a_measurement():
    engine = fake_engine()
    engine.runner._script = [0]
    runs = Bench(engine, Tokens(range(100)), Plan(0, 20, 1), engine.runner.clock)
    (tg,) = runs.results()
    assert tg.samples[0].tokens == 20
    assert len(engine.runner.sessions[0].tokens) == LEAD + 1 + 20


def test_the_context_holds_the_longest_test():
    assert Plan(512, 128).n_ctx == 513
    assert Plan(0, 128).n_ctx == LEAD + 129


def test_mean_median_and_deviation():
    r = result(90.0, 100.0, 140.0)
    assert r.mean == pytest.approx(110)
    assert r.median == pytest.approx(100)
    assert r.deviation == pytest.approx(700**0.5)


def test_one_run_has_no_deviation():
    assert result(50.0).deviation == 0.0


def test_runs_that_spread_over_a_tenth_of_the_median_are_noisy():
    assert not result(95.0, 100.0, 104.0).is_noisy
    assert result(95.0, 100.0, 106.0).is_noisy


def test_windows_of_a_text_move_on_and_begin_again():
    tokens = Tokens([1, 2, 3, 4, 5])
    assert [tokens.next(3), tokens.next(3)] == [[1, 2, 3], [4, 5, 1]]


def test_a_prompt_longer_than_the_text_repeats_it():
    tokens = Tokens([1, 2, 3])
    assert tokens.repeats_within(4)
    assert not tokens.repeats_within(3)
    assert tokens.next(4) == [1, 2, 3, 1]


@pytest.mark.parametrize("wrong", [(0, 0, 5), (-1, 1, 5), (1, 1, 0)])
def test_plans_that_measure_nothing_are_errors(wrong):
    with pytest.raises(InputError):
        Plan(*wrong)
