"""Figures of a real GPU, and a cache on it that begins warm."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

import hotset  # noqa: E402
from hotset.plan.hardware import Machine  # noqa: E402
from hotset.plan.measure import measure_machine  # noqa: E402


def test_every_figure_of_the_gpu_is_measured_and_makes_sense():
    machine = measure_machine()
    gpu = machine.gpu
    assert gpu is not None
    assert machine.missing.keys() <= {"PCIe generation and width"}
    small, *_, large = (gpu.pinned_copy[n] for n in sorted(gpu.pinned_copy))
    assert 1e8 < small < large < gpu.memory < 2e13
    assert all(1e8 < rate < gpu.memory for rate in gpu.zero_copy.values())
    assert 0 < gpu.graph_launch_s < gpu.launch_s < gpu.round_trip_s < 1e-3
    assert 0 < gpu.page_locked_bytes <= gpu.page_lock_tried
    if gpu.best_link:
        assert large < 1.05 * gpu.best_link.rate
    assert Machine.decoded(machine.encoded()) == machine


def test_a_warm_start_on_the_gpu_fills_slots_and_changes_no_token(monkeypatch, tmp_path):
    monkeypatch.setattr("hotset.experts.heat.cache_root", lambda: tmp_path)
    cold = hotset.load("demo", device="cuda", expert_cache="25%", warm_start=True)
    expected = cold.generate("The package manager", max_tokens=60, seed=1)
    cold.warm_start.save()
    warm = hotset.load("demo", device="cuda", expert_cache="25%", warm_start=True, slots_from_profile=True)
    assert warm.warm_start.filled > 0
    for layer in range(warm.runner.shape.n_layers):
        state = warm.runner.cache.state(layer)
        state.check()
        assert set(np.flatnonzero(state.slot_of_expert >= 0)) == set(
            cold.warm_start.heat.hottest(layer, warm.runner.shape.n_slots[layer])
        )
    assert warm.generate("The package manager", max_tokens=60, seed=1).tokens == expected.tokens
