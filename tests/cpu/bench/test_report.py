from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hotset.bench.report import Line, Setting, Table
from hotset.bench.runner import Result, Sample, Workload
from hotset.engine.nvml import GpuState, Link
from hotset.experts.stats import Prefetched

SETTING = Setting("a | b", 1 << 30, 10**9, "CPU", 4, "25%", "lru", False, 10**9, 2e10)


def line(kind: str = "tg", setting: Setting = SETTING) -> Line:
    runs = (Sample(10, 1.0, 1, 3, 5 << 20), Sample(10, 1.0, 1, 3, 5 << 20))
    return Line(setting, Result(Workload(kind, 10), runs[0], runs, cold=False))


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_decode_is_a_share_of_what_memory_allows():
    assert SETTING.ceiling == 20
    assert line().share == pytest.approx(0.5)


def test_prompts_have_no_such_ceiling():
    assert line("pp").share is None
    assert line("pp").cells()["of ceiling"] == "-"


def test_without_a_measured_rate_there_is_no_share():
    assert line(setting=replace(SETTING, read_rate=None)).share is None


def test_the_markdown_table_has_its_header_once():
    head, rule, pp, tg = Table("md", [], [line("pp"), line("tg")]).text.splitlines()
    assert cells(head)[:6] == ["model", "size", "params", "backend", "test", "t/s"]
    assert " ".join(cells(pp)) == "a \\ b 1.00 GiB 1.00 B CPU pp10 10.00 ± 0.00 10.00 25.0 % 0.50 - lru - -"
    assert len({len(row) for row in (head, rule, pp, tg)}) == 1


def test_a_gpus_ceiling_is_the_resident_step_and_the_misses_over_the_bus():
    setting = replace(SETTING, bus_rate=(5 << 20) / 0.1, read_rate=4e12)
    found = replace(line(setting=setting), resident_s=0.04)
    assert found.ceiling == pytest.approx(1 / (0.04 + 0.01))
    assert found.share == pytest.approx(10 / 20)
    slower = replace(found, setting=replace(setting, bus_factor=4))
    assert slower.ceiling == pytest.approx(1 / (0.04 + 0.04))


def test_without_a_resident_step_the_ceiling_is_made_of_bytes():
    setting = replace(SETTING, bus_rate=(5 << 20) / 0.1, read_rate=1e11)
    assert line(setting=setting).ceiling == pytest.approx(1 / (0.01 + 0.01))


def test_what_a_gpu_alone_has_gets_columns_there():
    runs = (Sample(10, 1.0, 1, 3, 5 << 20, fetch_ms=1.0, vram_bytes=1 << 30),)
    gpu = replace(SETTING, backend="CUDA", bus_rate=5e10)
    found = Line(gpu, Result(Workload("tg", 10), runs[0], runs, cold=False))
    head, _, row = Table("md", ["ms in misses", "bus GB/s", "VRAM peak"], [found]).text.splitlines()
    shown = dict(zip(cells(head), cells(row)[1:], strict=True))
    assert [shown[name] for name in ("ms in misses", "bus GB/s", "VRAM peak")] == ["0.100", "5.2 of 50.0", "1.00 GiB"]


def test_a_fetch_did_not_bring_what_had_come_ahead():
    ahead = Prefetched(needed=2 << 20, in_vain=6 << 20)
    runs = (Sample(10, 1.0, 1, 3, 5 << 20, fetch_ms=1.0, prefetched=ahead),)
    setting = replace(SETTING, backend="CUDA", bus_rate=5e10, bus_factor=2)
    found = Line(setting, Result(Workload("tg", 10), runs[0], runs, cold=False))
    assert found.reached_rate == pytest.approx(2 * (3 << 20) / 1e-3)
    head, _, row = Table("md", ["ahead"], [found]).text.splitlines()
    assert dict(zip(cells(head), cells(row)[1:], strict=True))["ahead"] == "0.20 of 0.80"
    facts = found.facts()
    assert facts["prefetched_needed_per_token"] == pytest.approx((2 << 20) / 10)
    assert facts["prefetched_in_vain_per_token"] == pytest.approx((6 << 20) / 10)
    assert line().facts()["prefetched_needed_per_token"] is None


def test_how_the_gpu_ran_is_recorded_and_has_the_same_columns_where_it_is_not_known():
    known = replace(line(), gpu=GpuState(Link(4, 8), Link(4, 16), 1500, 1980, 310.5, 700.0))
    first, second = Table("json", [], [known, line()]).facts
    assert (first["gpu_link"], first["gpu_best_link"], first["gpu_mhz"]) == ("PCIe 4 x8", "PCIe 4 x16", 1500)
    assert first.keys() == second.keys()
    assert second["gpu_watts"] is None


def test_swept_settings_get_columns():
    head = Table("md", ["threads", "cache"], [line()]).text.splitlines()[0]
    assert cells(head)[3:7] == ["backend", "threads", "cache", "test"]


def test_facts_have_every_sample():
    table = Table("jsonl", [], [line()])
    facts = json.loads(table.text)
    assert facts["samples_tokens_per_s"] == [10.0, 10.0]
    assert facts["bytes_fetched_per_token"] == 0.5 * (1 << 20)
    assert table.facts == [facts]
