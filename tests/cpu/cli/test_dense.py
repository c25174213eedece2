"""Commands about the expert cache, given a model that has none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from hotset.bench.runner import Plan
from hotset.cli.measuring import Measuring
from hotset.cli.opening import Choices
from samples import write_dense


@pytest.fixture
def dense(tmp_path, monkeypatch):
    monkeypatch.setattr("hotset.cli.measuring.memory_rate", lambda _threads: 1e9)
    return write_dense(tmp_path / "dense.gguf")


def test_speed_is_measured_and_told_without_hits(call, dense):
    result = call("bench", dense, "-p", "4", "-n", "2", "-r", "1", "--device", "cpu")
    assert result.code == 0
    rows = json.loads(result.out.splitlines()[-1])
    assert [row["hit_rate"] for row in rows] == [None, None]
    assert rows[1]["verdict"].startswith("bound by")


def test_picks_of_a_trace_make_no_sense(call, dense):
    for routing in ("random", "absent.npz"):
        result = call("bench", dense, "--routing", routing)
        assert (result.code, "is a dense model, which picks no experts" in result.err) == (1, True)


def test_a_plan_says_so(call, dense):
    result = call("plan", dense, "--vram", "2GiB")
    assert "none: a dense model" in result.out
    assert "hit rate" not in result.out


def test_a_bus_that_brings_nothing_is_not_measured():
    measuring = Measuring(Choices("x"), Plan(), [], None, None, 1, alone=True)
    measuring.__dict__["on_gpu"] = SimpleNamespace(model=SimpleNamespace(bank=SimpleNamespace(span_bytes=())))
    assert measuring.bus_rate is None
