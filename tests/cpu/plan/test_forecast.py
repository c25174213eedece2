"""Forecasts beside steps that were measured on a GPU; the raw results lie in docs/results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.plan.forecast import (
    ASSUMED,
    CPU_LAYER_S,
    FITTED_ON,
    Rates,
    Work,
    cpu_band,
    decode_band,
    miss_s,
    resident_s,
    step_s,
)
from hotset.plan.hardware import Machine
from machines import WITH_GPU

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
SHAPES = ("qwen3-30b-a3b", "olmoe-like", "gptoss-like")
RUNS = (
    *(f"{day}-gpu-arms-{s}" for day in ("2026-11-29", "2026-11-30") for s in SHAPES),
    "2026-11-29-gpu-arms-qwen3-30b-a3b-slower-bus",
)
BAR = 0.10
WORK = Work(n_layers=4, n_picks=2, dense_bytes=1000, span_bytes=(300, 300, 500))
RATES = Rates(memory=1e9, copies={300: 1e6, 500: 2e6}, tolerance=0.1, source="a test")


def measured(run: str):
    """Work, rates and arms of one sequence."""
    facts = json.loads((RESULTS / f"{run}.json").read_text())
    spans = tuple(int(size) for size, n in facts["span_bytes"].items() for _ in range(n))
    work = Work(facts["n_layers"], facts["n_picks"], facts["dense_bytes_read"], spans)
    machine = facts["machine"]
    rates = Rates(machine["gpu_memory"], {int(n): r for n, r in machine["pinned_copy"].items()}, 0.1, machine["gpu"])
    return work, rates, [arm for arm in facts["decode"] if arm["rows"] == 1]


@pytest.mark.parametrize("run", RUNS)
def test_given_the_hit_rate_and_what_came_ahead_a_step_is_forecast_within_a_tenth(run):
    work, rates, arms = measured(run)
    assert {"25%", "50%", "100%"} <= {arm["size"] for arm in arms}
    for arm in arms:
        ahead = arm.get("ahead_needed_mib", 0.0) * 2**20 / work.expert_bytes
        forecast = step_s(work, replace(rates, bus_factor=arm["bus"]), arm["hit_rate"] + ahead)
        assert forecast * 1e3 == pytest.approx(arm["ms"], rel=BAR), arm


@pytest.mark.parametrize("run", RUNS)
def test_missed_bytes_are_those_that_were_counted(run):
    work, _, arms = measured(run)
    for arm in arms:
        bytes_missed = (1 - arm["hit_rate"]) * work.expert_bytes
        assert bytes_missed == pytest.approx(arm["mib_per_step"] * 2**20, rel=0.02, abs=1)


def test_a_bus_so_many_times_slower_makes_misses_so_many_times_dearer():
    once, four = miss_s(WORK, RATES, 0.5), miss_s(WORK, replace(RATES, bus_factor=4), 0.5)
    assert four == pytest.approx(4 * once)
    assert resident_s(WORK, RATES.memory) + four == pytest.approx(step_s(WORK, replace(RATES, bus_factor=4), 0.5))


def test_a_copy_takes_its_own_sizes_rate():
    assert miss_s(WORK, RATES, 0.0) == pytest.approx(2 * (300 / 1e6 + 300 / 1e6 + 500 / 2e6) / 0.99)


def test_more_hits_are_faster_and_all_hits_cost_no_bus():
    steps = [step_s(WORK, RATES, h / 10) for h in range(11)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == resident_s(WORK, RATES.memory)


def test_a_band_holds_what_is_expected():
    band = decode_band(WORK, RATES, (0.4, 0.5, 0.6))
    assert band.low < band.expected < band.high
    assert band.expected == 1 / step_s(WORK, RATES, 0.5)


def test_without_a_measured_gpu_rates_are_said_to_be_assumed():
    cpu_only = Machine("cpu", 2, 1 << 30, None, {1: 1e9, 2: 2e9})
    for machine in (None, cpu_only):
        rates = Rates.of(machine)
        assert rates.source.startswith("assumed")
        assert rates.tolerance == ASSUMED


def test_a_given_bus_takes_the_place_of_the_measured_one():
    rates = RATES.with_bus(5e9)
    assert rates.copy_rate(123) == rates.copy_rate(10**9) == 5e9
    assert rates.memory == RATES.memory
    assert "as given" in rates.source


def test_the_cpu_is_bound_by_its_memory():
    machine = Machine("cpu", 2, 1 << 30, None, {1: 1e9, 2: 2e9})
    band = cpu_band(WORK, machine, 2)
    assert band.high == pytest.approx(1 / ((1000 + 2 * 1100) / 2e9 + 4 * CPU_LAYER_S))
    assert band.low < band.expected < band.high


def test_another_gpu_than_the_fits_has_a_wider_band():
    known = Rates.of(replace(WITH_GPU, gpu=replace(WITH_GPU.gpu, name=FITTED_ON)))
    other = Rates.of(replace(WITH_GPU, gpu=replace(WITH_GPU.gpu, name="another")))
    assert known.tolerance < other.tolerance < ASSUMED
