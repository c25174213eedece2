from __future__ import annotations

import numpy as np
import pytest

from fakes import SPAN, fake_engine
from hotset.bench.runner import LEAD, Bench, Plan, Result, Sample, Tokens, Workload, results
from hotset.errors import InputError
from hotset.experts.trace import Trace


def bench(plan: Plan, **changes) -> tuple[Bench, object]:
    runner = fake_engine(**changes).runner
    return Bench(runner, Tokens(range(4000)), plan, clock=runner.clock), runner


def measured(plan: Plan, **changes) -> tuple[list[Result], object]:
    run, runner = bench(plan, **changes)
    return [result for (result,) in results([run], plan)], runner


def sample(rate: float) -> Sample:
    return Sample(100, 100 / rate, 3, 1, 4000)


def result(*rates: float) -> Result:
    return Result(Workload("tg", 100), sample(1.0), tuple(map(sample, rates)), cold=False)


def test_prompt_and_decode_are_timed_apart():
    (pp, tg), _ = measured(Plan((200,), (100,), 2), prompt_s=1.0, step_s=0.02)
    assert (pp.test.name, pp.mean) == ("pp200", 200)
    assert (tg.test.name, tg.mean) == ("tg100", pytest.approx(50))


def test_decode_counts_only_decoding():
    (tg,), _ = measured(Plan((), (10,), 1))
    assert tg.hit_rate == 0.75
    assert tg.bytes_per_token == SPAN
    assert tg.samples[0].misses == 10


def test_the_first_run_on_an_empty_cache_is_reported_apart():
    (pp,), runner = measured(Plan((8,), (), 3))
    assert len(pp.samples) == 3
    assert runner.calls == ["reset cache", "feed 8", "feed 8", "feed 8", "feed 8"]


def test_cold_runs_empty_the_cache_before_each():
    _, runner = measured(Plan((8,), (), 2, cold=True))
    assert runner.calls == ["reset cache", "feed 8"] + ["reset cache", "feed 8"] * 2


def test_warm_up_runs_every_test_and_is_timed_apart():
    run, runner = bench(Plan((8,), (4,), 1), prompt_s=1.0, step_s=0.5)
    assert run.warm_up() == 1.0 + 1.0 + 4 * 0.5
    assert runner.calls == ["reset cache", "feed 8", "reset cache", f"feed {LEAD}"]


def test_every_run_reads_another_prompt():
    _, runner = measured(Plan((16,), (), 3))
    prompts = [tuple(s.prompts[0]) for s in runner.sessions]
    assert len(set(prompts)) == 4


def test_arms_take_turns_in_an_order_that_turns_and_read_the_same_tokens():
    runner = fake_engine().runner
    arms = [runner.beside((n,) * 6, "lru") for n in (1, 2)]
    order = []
    for arm in arms:
        arm.on_feed = lambda n, arm=arm: order.append(arms.index(arm))
    plan = Plan((8,), (), 4)
    list(results([Bench(arm, Tokens(range(4000)), plan, clock=arm.clock) for arm in arms], plan))
    assert order == [0, 1] + [0, 1, 1, 0] * 2
    assert [s.prompts for s in arms[0].sessions] == [s.prompts for s in arms[1].sessions]


def test_routed_repetitions_begin_where_answers_begin_and_read_no_prompt():
    runner = fake_engine().runner
    trace = Trace(np.zeros((9, 1, 1), np.int16), np.array([0, 4, 4, 6, 9]), 1)
    plan = Plan((), (2,), 3)
    list(results([Bench(runner, Tokens(range(9)), plan, routing=trace, clock=runner.clock)], plan))
    assert runner.calls == ["reset cache", "begin at 0", "begin at 4", "begin at 6", "begin at 0"]
    assert runner.routing is trace.experts


def test_peak_memory_is_the_highest_of_the_runs():
    class Peak:
        n = 0

        def begin(self) -> None:
            self.n += 1

        def read(self) -> int:
            return -self.n

    runner = fake_engine().runner
    plan = Plan((8,), (), 2)
    ((pp,),) = results([Bench(runner, Tokens(range(9)), plan, peak=Peak(), clock=runner.clock)], plan)
    assert (pp.first.vram_bytes, pp.vram_bytes) == (-1, -2)


def test_an_end_token_does_not_end_a_measurement():
    runner = fake_engine().runner
    runner._script = [0]
    plan = Plan((), (20,), 1)
    ((tg,),) = results([Bench(runner, Tokens(range(100)), plan, clock=runner.clock)], plan)
    assert tg.samples[0].tokens == 20
    assert len(runner.sessions[0].tokens) == LEAD + 1 + 20


def test_no_step_runs_ahead_of_the_measured_ones():
    _, runner = measured(Plan((), (20,), 1))
    assert runner.params.max_tokens == 21


def test_the_context_holds_the_longest_test():
    assert Plan((512,), (128,)).n_ctx == 513
    assert Plan((), (128,)).n_ctx == LEAD + 129


def test_lists_of_lengths_are_tests_one_after_another_and_0_is_none():
    plan = Plan((16, 8, 16), (0, 4))
    assert [test.name for test in plan.tests] == ["pp16", "pp8", "tg4"]
    assert plan.n_ctx == LEAD + 5


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


@pytest.mark.parametrize("wrong", [((0,), (0,), 5), ((-1,), (1,), 5), ((1,), (1,), 0), ((), (), 5)])
def test_plans_that_measure_nothing_are_errors(wrong):
    with pytest.raises(InputError):
        Plan(*wrong)
