from __future__ import annotations

import json

import pytest

from hotset.engine.nvml import GpuInfo, Link
from hotset.plan.hardware import (
    Machine,
    cpu_name,
    geometric,
    keep_machine,
    known_machine,
    machine_key,
    machine_path,
    rate_between,
)
from machines import WITH_GPU

CARD = GpuInfo("a card", "GPU-1", "0000:01:00", 8 << 30, Link(4, 8), Link(4, 16))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOTSET_CACHE", str(tmp_path))


def test_what_is_kept_is_what_is_read_again():
    assert known_machine("k") is None
    keep_machine(WITH_GPU, "k")
    assert known_machine("k") == WITH_GPU
    assert [p.name for p in machine_path("k").parent.iterdir()] == ["k.json"]


def test_a_machine_without_a_gpu_is_kept_too():
    machine = Machine("cpu", 2, 1 << 30, None, {1: 1e9}, missing={"GPU": "no driver"})
    keep_machine(machine, "k")
    assert known_machine("k") == machine


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(format=99),
        lambda v: v.pop("dram"),
        lambda v: v.update(dram={}),
        lambda v: v.update(dram={"1": -1.0}),
        lambda v: v.update(dram={"one": 1.0}),
        lambda v: v.update(dram=[1]),
        lambda v: v["gpu"].pop("memory"),
        lambda v: v["gpu"].update(memory="fast"),
        lambda v: v["gpu"].update(link={"generation": 3}),
        lambda v: v.update(gpu=[1, 2]),
    ],
)
def test_figures_that_make_no_sense_count_as_none(change):
    value = json.loads(WITH_GPU.encoded())
    change(value)
    path = keep_machine(WITH_GPU, "k")
    path.write_text(json.dumps(value))
    assert known_machine("k") is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_damaged_file_counts_as_none(data):
    keep_machine(WITH_GPU, "k").write_bytes(data)
    assert known_machine("k") is None


def test_another_card_or_slot_is_another_machine():
    keys = {
        machine_key([]),
        machine_key([CARD]),
        machine_key([GpuInfo("a card", "GPU-2", "0000:01:00", 8 << 30, None, None)]),
    }
    assert len(keys) == 3
    assert machine_key([CARD]) == machine_key([CARD])


def test_the_link_in_use_does_not_make_another_machine():
    idle = GpuInfo("a card", "GPU-1", "0000:01:00", 8 << 30, Link(1, 8), Link(4, 16))
    assert machine_key([CARD]) == machine_key([idle])


def test_between_two_sizes_the_time_is_a_straight_line():
    rates = {100: 10.0, 300: 15.0}  # 10 s and 20 s
    assert rate_between(rates, 200) == pytest.approx(200 / 15)
    assert [rate_between(rates, n) for n in (100, 300)] == pytest.approx([10.0, 15.0])


def test_beyond_the_sizes_measured_the_rate_stays():
    rates = {100: 10.0, 300: 15.0}
    assert (rate_between(rates, 1), rate_between(rates, 10**9)) == (10.0, 15.0)


def test_threads_that_were_not_measured_take_the_nearest():
    assert [WITH_GPU.dram_rate(n) for n in (1, 2, 3, 7, 64)] == [10e9, 20e9, 20e9, 50e9, 50e9]


def test_the_processor_has_a_name(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A Processor @ 3 GHz\n")
    assert cpu_name(tmp_path) == "A Processor @ 3 GHz"
    assert cpu_name(tmp_path / "none")


@pytest.mark.parametrize(("last", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_threads_double_up_to_all(last, expected):
    assert geometric(1, last, 2) == expected
