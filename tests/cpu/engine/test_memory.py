"""The memory table: it adds up, it is checked against the driver, and where VRAM runs short slots are given back before anything fails."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hotset.engine.device_loading import fill_room  # noqa: E402
from hotset.engine.memory import (  # noqa: E402
    CHUNK_SHARE,
    GIB,
    MAX_CHUNK_ROWS,
    MIB,
    MIN_CHUNK_ROWS,
    SLOT_ROUNDING,
    DeviceNeeds,
    Usage,
    chunk_row_bytes,
    chunk_rows,
    device_plan,
    reserve_bytes,
)
from hotset.engine.room import FIRST_STEP, with_room  # noqa: E402
from hotset.errors import PlacementError  # noqa: E402
from hotset.experts.cache import ExpertCache  # noqa: E402
from hotset.experts.policy import Policy  # noqa: E402
from hotset.experts.slots import CacheShape, CacheSize  # noqa: E402


@dataclass(frozen=True)
class Config:
    """As much of a model's shape as the planner asks for."""

    n_layers: int
    n_experts: int
    d_model: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 4
    d_head: int = 128
    d_expert: int = 768
    n_picks: int = 8


@dataclass(frozen=True)
class Span:
    n_bytes: int


NEEDS = DeviceNeeds.measured(
    Usage(driver=900 * MIB, reserved=500 * MIB, allocated=480 * MIB),
    weights=300 * MIB,
    kv=100 * MIB,
    overflow=50 * MIB,
    odds=2 * MIB,
    reserve=256 * MIB,
)


def test_a_dry_run_is_divided_without_a_byte_lost():
    assert (NEEDS.context, NEEDS.scratch, NEEDS.rounding) == (400 * MIB, 28 * MIB, 20 * MIB + SLOT_ROUNDING)
    assert NEEDS.total == 900 * MIB + SLOT_ROUNDING + NEEDS.reserve


def test_the_table_is_within_the_budget_and_leaves_less_than_a_span():
    rng = np.random.default_rng(0)
    for _ in range(100):
        n_layers, n_experts = int(rng.integers(1, 60)), int(rng.integers(1, 200))
        spans = [Span(256 * int(n)) for n in rng.integers(1, 20_000, n_layers)]
        budget = NEEDS.total + int(rng.integers(0, 8 * GIB))
        plan = device_plan(Config(n_layers, n_experts), spans, NEEDS, CacheSize.parse("auto"), budget)
        left = budget - plan.total("gpu")
        with_room_for_more = [s.n_bytes for s, n in zip(spans, plan.n_slots, strict=True) if n < n_experts]
        assert left >= 0
        assert not with_room_for_more or left < min(with_room_for_more)


def test_a_chunk_takes_its_share_of_the_budget_and_no_more_rows_than_it_needs():
    config = Config(48, 128)
    for gib in range(1, 200, 3):
        rows = chunk_rows(config, gib * GIB)
        assert MIN_CHUNK_ROWS <= rows <= MAX_CHUNK_ROWS
        assert rows == MIN_CHUNK_ROWS or rows * chunk_row_bytes(config) <= gib * GIB * CHUNK_SHARE
    assert reserve_bytes(6 * GIB) == 256 * MIB
    assert reserve_bytes(100 * GIB) == 2 * GIB


SPAN_BYTES = 64 << 10
N_EXPERTS = 12


def make_cache(n_slots: int = 6, **options) -> ExpertCache:
    bank = torch.arange(2 * N_EXPERTS, dtype=torch.uint8).repeat_interleave(SPAN_BYTES).view(2, N_EXPERTS, SPAN_BYTES)
    shape = CacheShape((SPAN_BYTES,) * 2, (N_EXPERTS,) * 2, (n_slots,) * 2, 2, 1)
    cache = ExpertCache(shape, Policy.parse("lrfu:16"), [b.data_ptr() for b in bank], "cpu", poison=True, **options)
    cache.bank = bank  # lives as long as what reads it
    return cache


def request(cache: ExpertCache, picks: list[int]) -> list[int]:
    """One request of both layers; the first byte found where each pick lies."""
    found = []
    for layer in range(2):
        cache.lookup(layer, torch.tensor([picks], dtype=torch.int32), torch.ones(1, dtype=torch.int32))
        cache.fetch(layer)
        pool, overflow = cache._pool, cache._overflow
        for address in cache.address.tolist():
            area = pool if pool.data_ptr() <= address < pool.data_ptr() + pool.numel() else overflow
            found.append(int(area[address - area.data_ptr()]))
    return found


def test_slots_given_back_keep_counts_and_scores_and_lose_no_expert():
    cache = make_cache()
    for picks in ([0, 1], [2, 3], [1, 2]):
        request(cache, picks)
    stats, scores = cache.stats(), cache.state(0).score.copy()
    assert cache.give_back(5 * SPAN_BYTES) == 6 * SPAN_BYTES - SPAN_BYTES
    assert sum(cache.shape.n_slots) == 7
    assert cache.stats() == replace(stats, n_slots=cache.shape.n_slots)
    assert np.array_equal(cache.state(0).score, scores)
    assert (cache.state(0).slot_of_expert == -1).all()
    assert request(cache, [1, 2]) == [1, 2, 13, 14]
    assert cache.give_back(10**12) == 7 * SPAN_BYTES
    assert cache.give_back(1) == 0
    assert request(cache, [5, 2]) == [5, 2, 17, 14]


class Budget:
    """Stands for the driver: everything but the slots is `other` bytes."""

    def __init__(self, cache: ExpertCache, n_bytes: int, reserve: int, other: int) -> None:
        self.cache, self.n_bytes, self.reserve, self.other = cache, n_bytes, reserve, other
        self.bounds: list[Usage] = []

    def usage(self) -> Usage:
        slots = self.cache.shape.slot_bytes
        return Usage(self.other + slots, slots, slots)

    def bound(self, usage: Usage) -> None:
        self.bounds.append(usage)


def plan_for(cache: ExpertCache, needs: DeviceNeeds, budget: int):
    return device_plan(Config(2, N_EXPERTS), [Span(SPAN_BYTES)] * 2, needs, CacheSize.parse("auto"), budget)


@pytest.mark.parametrize("excess", [0, 1, 3 * SPAN_BYTES, 100 * SPAN_BYTES])
def test_what_is_held_beyond_the_plan_is_taken_off_the_slots_and_said(excess):
    cache = make_cache(0)
    needs = DeviceNeeds(100, 0, 0, 0, 0, 0, 0, reserve=SPAN_BYTES)
    budget = Budget(cache, needs.total + 8 * SPAN_BYTES, needs.reserve, needs.context + excess)
    plan, notes = fill_room(cache, plan_for(cache, needs, budget.n_bytes), budget)
    freed = min(8, -(-excess // SPAN_BYTES))
    assert sum(plan.n_slots) == sum(cache.shape.n_slots) == 8 - freed
    assert plan.bytes_of("slots") == cache.shape.slot_bytes
    assert plan.usage == budget.usage() == budget.bounds[-1]
    assert freed == 8 or plan.usage.driver <= budget.n_bytes - budget.reserve
    assert len(notes) == (1 if excess else 0)
    assert all("the GPU holds more than was planned: the expert cache gave back" in note for note in notes)


def test_memory_that_runs_out_is_taken_from_the_slots_with_a_warning():
    cache, limit = make_cache(), 3 * SPAN_BYTES

    def work() -> str:
        if cache.shape.slot_bytes > limit:
            raise torch.cuda.OutOfMemoryError("no room")
        return "done"

    with pytest.warns(UserWarning, match=r"the GPU ran out of memory: the expert cache gave back \d+ MiB and holds"):
        assert with_room(cache, work) == "done"
    assert cache.shape.slot_bytes <= max(0, 12 * SPAN_BYTES - FIRST_STEP)


def test_memory_that_runs_out_without_a_slot_left_is_a_named_error():
    def work() -> None:
        raise torch.cuda.OutOfMemoryError("no room for 3 bytes")

    cache = make_cache()
    message = r"ran out of memory with no expert left to give back \(no room for 3 bytes\); lower --ctx-size"
    with pytest.warns(UserWarning, match="gave back"), pytest.raises(PlacementError, match=message):
        with_room(cache, work)
    assert cache.shape.slot_bytes == 0
