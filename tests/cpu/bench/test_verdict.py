from __future__ import annotations

from dataclasses import replace

import pytest

from hotset.bench.report import Line, Setting
from hotset.bench.runner import Result, Sample, Workload
from hotset.bench.verdict import bound, verdicts

SETTING = Setting(
    "m", 1, 1, "CUDA", 4, "x", "lrfu:16", True, 10**9, 4e12, n_slots=(8, 8), n_experts=32, n_picks=4, bus_rate=5e10
)


def line(tokens_per_s: float, *, slots: int = 8, policy: str = "lrfu:16", hits: int = 80, fetch_ms: float = 5.0, scatter: float = 0.0, active: bool = True, kind: str = "tg") -> Line:  # fmt: skip
    """Ten tokens in three runs, 100 experts needed; `fetch_ms` per token."""
    setting = replace(SETTING, n_slots=(slots, slots), policy=policy, active=active)
    rates = (tokens_per_s - scatter, tokens_per_s, tokens_per_s + scatter)
    runs = tuple(Sample(10, 10 / rate, hits, 100 - hits, 1 << 20, 10 * fetch_ms if active else None) for rate in rates)
    return Line(setting, Result(Workload(kind, 10), runs[0], runs, cold=False))


def off(tokens_per_s: float) -> Line:
    return line(tokens_per_s, slots=0, policy="-", hits=0)


def test_a_cache_that_beats_off_and_static_helped():
    text, *others = verdicts([line(100), off(40), line(80, policy="static")])
    helped = "the cache helped: 2.50 x the speed with the cache off, 1.25 x the speed with static placement"
    assert text == f"{helped}; bound by the bus: misses take 50.0 % of the time"
    assert [other.partition(":")[0] for other in others] == [
        "bound by the small kernels of each layer, which wait for one another"
    ] * 2


@pytest.mark.parametrize(
    ("setting", "fetch_ms", "busy", "expected"),
    [
        ({}, 6.0, 0.2, "the bus: misses take 60.0 %"),
        ({"per_token": 3 * 10**10}, 1.0, 0.2, "memory: weights are read at 75.0 %"),
        ({}, 1.0, 1.0, "the host, which starts the kernels one by one"),
        ({}, 1.0, 0.2, "the small kernels of each layer, which wait for one another: bus 10.0 %, memory 2.5 %"),
        ({"backend": "CPU", "read_rate": 2e11}, None, 3.5, "memory: weights are read at 50.0 %"),
        ({"backend": "CPU", "read_rate": 5e10}, None, 3.5, "the processor, whose own caches hold the weights: 3.5 CPU"),
        ({"backend": "CPU", "read_rate": 1e12}, None, 2.5, "the CPU, of which it got little: 2.5 of 4 threads busy"),
        ({"backend": "CPU", "read_rate": 1e12}, None, 3.5, "the CPU: 3.5 of 4 threads busy, memory at 10.0 %"),
    ],
)
def test_what_bound_a_run_is_told_from_the_numbers(setting, fetch_ms, busy, expected):
    run = Sample(10, 0.1, 80, 20, 1 << 20, None if fetch_ms is None else 10 * fetch_ms, cpu_seconds=0.1 * busy)
    found = Line(replace(SETTING, **setting), Result(Workload("tg", 10), run, (run, run), cold=False))
    assert bound(found).startswith(f"bound by {expected}")
    assert bound(Line(found.setting, replace(found.result, test=Workload("pp", 10)))) == ""


def test_a_cache_slower_than_off_says_so():
    (text, _) = verdicts([line(30), off(40)])
    assert "did not help: 0.75 x the speed with the cache off" in text
    assert "a speed that was worse than with the cache off" in text


def test_a_gap_within_the_scatter_is_no_gap():
    (text, _) = verdicts([line(43, scatter=6), off(40)])
    assert "did not help" in text
    assert "no more than the runs scatter" in text
    assert "worse" not in text


def test_a_cache_that_beats_off_alone_helped_in_part():
    text = verdicts([line(100), off(40), line(100, policy="static")])[0]
    assert "helped in part" in text


def test_single_runs_are_said_to_be_single():
    def once(arm: Line) -> Line:
        return replace(arm, result=replace(arm.result, samples=arm.result.samples[:1]))

    assert "2.50 x the speed with the cache off (single runs" in verdicts([once(line(100)), once(off(40))])[0]


def test_static_placement_of_another_size_is_no_rival():
    text = verdicts([line(100), line(200, policy="static", slots=16)])[0]
    assert text.startswith("not compared")
    assert "that does --expert-cache x,off --policy lrfu:16,static" in text


@pytest.mark.parametrize(
    ("arm", "why"),
    [
        (line(40, slots=3), "smaller than one token's demand: 3 slots in a layer, and a token picks 4"),
        (line(40, hits=27), "picks hardly repeat: 27.0 % hits, and random picks would give 25.0 %"),
        (line(40, fetch_ms=0.5), "the bus is idle, so look elsewhere: misses take 0.500 ms of 25.000 ms per token"),
        (line(40), "none of the known reasons holds: misses take 5.000 ms of 25.000 ms per token"),
    ],
)
def test_the_known_reasons_are_told_from_the_numbers(arm, why):
    assert why in verdicts([arm, off(40)])[0]


def test_a_cache_of_every_expert_is_said_to_fit():
    assert verdicts([line(100, slots=32), off(40)])[0].startswith("everything fits")


def test_a_cpu_only_counts():
    text, _ = verdicts([line(40, active=False), line(50, slots=0, policy="-", active=False)])
    assert text.startswith("counted only")
    assert "80.0 % would have been hits" in text


def test_prompts_get_no_verdict():
    assert verdicts([line(40, kind="pp"), off(40)])[0] == ""


def test_a_lone_arm_without_a_cache_is_told_what_bound_it():
    (text,) = verdicts([line(100, slots=0, policy="-", hits=0, fetch_ms=8.0)])
    assert text == "bound by the bus: misses take 80.0 % of the time"


def test_other_numbers_of_threads_are_no_rivals():
    other = replace(off(40), setting=replace(off(40).setting, threads=8))
    assert verdicts([line(100), other])[0].startswith("not compared")
