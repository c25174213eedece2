from __future__ import annotations

import pytest

from hotset.engine.cuda import cuda_problem
from hotset.plan import measure
from hotset.plan.hardware import Machine
from hotset.plan.measure import measure_machine, page_lockable
from lockers import FakeLocker


@pytest.mark.parametrize(
    ("limit", "asked", "expected"), [(10, 10, 10), (9, 10, 8), (0, 10, 0), (100, 0, 0), (100, 7, 7)]
)
def test_the_page_lock_trial_says_how_far_it_came_and_gives_all_back(monkeypatch, limit, asked, expected):
    monkeypatch.setattr(measure, "LOCK_PIECE", 4 << 10)
    locker = FakeLocker(limit << 10)
    assert page_lockable(locker, asked << 10) == expected << 10
    assert not locker.locked


@pytest.mark.skipif(cuda_problem() is None, reason="a GPU is here")
def test_without_a_gpu_memory_is_measured_and_the_rest_is_named(monkeypatch):
    monkeypatch.setattr(measure, "BUFFER_BYTES", 8 << 20)
    said = []
    machine = measure_machine(said.append)
    assert machine.gpu is None
    assert "GPU" in next(iter(machine.missing))
    assert min(machine.dram) == 1
    assert Machine.decoded(machine.encoded()) == machine
    assert said
