from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from hotset.engine.memory import GIB, device_plan
from hotset.errors import InputError, PlacementError
from hotset.experts.slots import CacheSize
from hotset.gguf import open_gguf
from hotset.model.kv import KVTypes
from hotset.plan.forecast import Rates
from hotset.plan.hardware import Machine
from hotset.plan.hit_rate import HitRate
from hotset.plan.planner import (
    PlannedModel,
    Point,
    estimated_needs,
    knee_of,
    plan_cpu,
    plan_gpu,
    slot_bytes,
    smallest_card,
    smallest_ram,
    vram_for,
    with_bus,
)
from samples import TinyMoE

RATES = Rates(memory=400e9, copies={1: 20e9}, tolerance=0.1, source="a test")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> PlannedModel:
    path = TinyMoE(n_layers=4, d_model=256, d_expert=256, n_experts=32, n_picks=4).write(
        tmp_path_factory.mktemp("m") / "m.gguf"
    )
    with open_gguf(path) as file:
        return PlannedModel.of(file)


def test_slots_are_those_of_the_engines_own_planner(model):
    budget = vram_for(model, 512, 0) + 40 * model.span_bytes[0]
    result = plan_gpu(model, RATES, budget, n_ctx=512)
    needs = estimated_needs(model, 512, budget)
    assert result.memory == device_plan(model.config, model.spans, needs, CacheSize.parse("auto"), budget)
    assert 0 < sum(result.memory.n_slots) < 128
    assert result.memory.total("gpu") <= budget


def test_a_budget_too_small_without_a_single_expert_is_an_error(model):
    with pytest.raises(PlacementError, match="without a single expert"):
        plan_gpu(model, RATES, 1 << 20)


def test_the_least_budget_holds_what_it_is_for_and_a_byte_less_does_not(model):
    for n in (0, 8, 32):
        slots = slot_bytes(model, (n,) * 4)
        budget = vram_for(model, 512, slots)
        assert estimated_needs(model, 512, budget).total + slots <= budget
        assert estimated_needs(model, 512, budget - 1).total + slots > budget - 1


def test_a_longer_context_takes_more(model):
    assert vram_for(model, 4096, 0) > vram_for(model, 512, 0)


def test_keys_and_values_in_eight_bits_take_about_half(model):
    small = replace(model, kv_types=KVTypes("q8_0", "q8_0"))
    plain, packed = (estimated_needs(m, 4096, 8 * GIB) for m in (model, small))
    assert packed.kv == plain.kv * 34 // 64
    assert plan_gpu(small, RATES, 8 * GIB).memory.bytes_of("KV cache") < plan_gpu(
        model, RATES, 8 * GIB
    ).memory.bytes_of("KV cache")


def test_a_model_that_the_gpu_kernels_do_not_know_is_said_to_run_on_the_cpu(model):
    odd = replace(model, config=replace(model.config, d_model=257))
    assert any("on the CPU" in note for note in plan_gpu(odd, RATES, 8 * GIB).notes)


def test_a_size_asked_for_is_taken(model):
    result = plan_gpu(model, RATES, 8 * GIB, size=CacheSize.parse("25%"))
    assert result.memory.n_slots == (8,) * 4
    assert any("demand" in n for n in plan_gpu(model, RATES, 8 * GIB, size=CacheSize.parse("2slots")).notes)


def test_all_experts_in_slots_hit_always(model):
    result = plan_gpu(model, RATES, 8 * GIB)
    assert result.hit_rate.all == (1.0, 1.0, 1.0)
    assert any("everything fits" in note for note in result.notes)


def test_hit_rates_may_come_from_elsewhere(model):
    result = plan_gpu(
        model, RATES, 8 * GIB, size=CacheSize.parse("25%"), hit_rates=lambda _: HitRate(0.1, 0.2, 0.3, "me")
    )
    assert (result.hit_rate.expected, result.hit_rate.source) == (0.2, "me")


def test_the_curve_goes_from_one_tokens_demand_to_all_experts(model):
    points = plan_gpu(model, RATES, 8 * GIB).points
    assert (points[0].n_slots[0], points[-1].n_slots[0]) == (4, 32)
    for before, after in pairwise(points):
        assert before.vram_bytes < after.vram_bytes
        assert before.hit_rate <= after.hit_rate
        assert before.ms >= after.ms


def test_the_knee_is_the_point_farthest_below_the_line():
    def point(fraction, ms):
        return Point((0,), fraction, 0, 0.0, ms)

    points = [point(0.0, 10.0), point(0.25, 4.0), point(0.5, 3.0), point(1.0, 2.0)]
    assert knee_of(points) is points[1]
    assert knee_of([point(0.0, 2.0), point(0.5, 2.0), point(1.0, 2.0)]) is None
    assert knee_of(points[:2]) is None
    assert knee_of([point(i / 7, 10 - i / 0.7) for i in range(8)]) is None


def test_the_smallest_card_and_memory_hold_it(model):
    card = smallest_card(model, 512, 0)
    assert card == 4
    assert smallest_card(model, 512, 5 * GIB) == 6
    assert smallest_card(model, 512, 10**15) is None
    assert (smallest_ram(1), smallest_ram(60 * GIB), smallest_ram(10**15)) == (8, 64, None)


def test_too_little_host_memory_is_said(model):
    assert not plan_gpu(model, RATES, 8 * GIB, ram=16 * GIB).notes[1:]
    assert "host memory" in plan_gpu(model, RATES, 8 * GIB, ram=GIB).notes[0]


def test_on_the_cpu_everything_lies_in_host_memory(model):
    machine = Machine("cpu", 2, 1 << 30, None, {1: 1e9, 2: 2e9})
    result = plan_cpu(model, machine)
    assert result.memory.budget is None
    assert result.memory.total("gpu") == 0
    assert result.speed.expected > 0
    assert plan_cpu(model, None).speed is None


def test_a_dense_model_has_no_cache(model):
    config = replace(model.config, layers=tuple(replace(r, feed=()) for r in model.config.layers))
    dense = PlannedModel(config, (), replace(model.reads, spans_read=0, bank=0))
    result = plan_gpu(dense, RATES, 8 * GIB)
    assert (result.hit_rate, result.points, result.knee) == (None, (), None)
    assert result.speed.expected > 0


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "nan", "inf", "1e9"])
def test_a_bus_that_is_no_rate_is_an_error(text):
    with pytest.raises(InputError, match="--bus"):
        with_bus(RATES, text)


def test_the_bus_may_be_given_or_measured():
    assert with_bus(RATES, "measured") is RATES
    assert with_bus(RATES, "24").copy_rate(1000) == 24e9
