from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.experts.cache import ExpertCache
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy
from hotset.experts.request import compiled_request
from hotset.experts.slots import CacheShape
from hotset.experts.trace import Trace
from hotset.kernels.rows import BEGINS, PADDING, REAL


class Both:
    """One cache and the reference side by side; every request is compared in full."""

    def __init__(self, shape, setting):
        self.shape = shape
        policy = Policy.parse(setting)
        self.banks = [
            torch.zeros(n_experts * span, dtype=torch.uint8)
            for n_experts, span in zip(shape.n_experts, shape.span_bytes, strict=True)
        ]
        self.cache = ExpertCache(shape, policy, [bank.data_ptr() for bank in self.banks], "cpu")
        self.states = [
            LayerState(policy, n_experts, n_slots, shape.max_rows, run=compiled_request())
            for n_experts, n_slots in zip(shape.n_experts, shape.n_slots, strict=True)
        ]
        self.totals = np.zeros((4, shape.n_layers), int)

    def request(self, layer, picks, mask):
        decision = self.states[layer].request(picks, mask)
        address = self.cache.lookup(layer, torch.from_numpy(picks), torch.from_numpy(mask))
        self.totals[:, layer] += decision.hits, decision.misses, decision.overflows, mask.any()
        state = self.cache.state(layer)
        state.check()
        assert state.scores.tobytes() == self.states[layer].scores.tobytes()
        assert np.array_equal(state.slot_of_expert, self.states[layer].slot_of_expert)
        buffers = self.cache._buffers
        n = decision.misses
        assert int(buffers.n_fetch) == n
        assert address.tolist() == self.addresses(layer, decision.location)
        assert buffers.fetch_target[:n].tolist() == self.addresses(layer, decision.fetch_location)
        sources = self.banks[layer].data_ptr() + decision.fetch_expert.astype(np.int64) * self.shape.span_bytes[layer]
        assert buffers.fetch_source[:n].tolist() == sources.tolist()

    def addresses(self, layer, location):
        _, pool, overflow, span, n_slots = self.cache._buffers.table[layer].tolist()
        location = location.astype(np.int64).ravel()
        there = np.where(location < n_slots, pool + location * span, overflow + (location - n_slots) * span)
        return np.where(location < 0, 0, there).tolist()

    def check_totals(self):
        stats = self.cache.stats()
        assert self.totals.tolist() == [list(c) for c in (stats.hits, stats.misses, stats.overflows, stats.requests)]


@pytest.fixture(scope="module")
def traces(shared):
    return {name: Trace.read(shared / "traces" / f"{name}.decode.npz") for name in ("gpt-oss-20b", "olmoe-1b-7b")}


# (policy, percent of slots, rows, requests): 1,000 of each trace
REPLAYS = [
    ("lrfu:16", 25, 1, 200),
    ("lrfu:16", 37.5, 2, 100),
    ("lrfu:16", 50, 4, 100),
    ("lrfu:4", 25, 8, 100),
    ("product", 25, 1, 200),
    ("product", 37.5, 3, 100),
    ("product", 25, 8, 60),
    ("lru", 25, 1, 100),
    ("lru", 50, 3, 100),
    ("lfu", 25, 1, 100),
    ("lfu", 37.5, 4, 100),
    ("static", 50, 2, 60),
    ("lrfu:16", 0, 2, 40),
]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "olmoe-1b-7b"])
@pytest.mark.parametrize(("setting", "percent", "rows", "n_requests"), REPLAYS)
def test_the_kernel_decides_real_traces_as_the_reference_does(traces, name, setting, percent, rows, n_requests):
    trace = traces[name]
    layers = (0, trace.n_layers - 1)
    n_slots = int(trace.n_experts * percent / 100)
    both = Both(CacheShape((512, 768), (trace.n_experts,) * 2, (n_slots,) * 2, trace.k, rows), setting)
    rng = np.random.default_rng(rows)
    starts = rng.integers(0, trace.n_tokens - n_requests, rows)
    for step in range(n_requests // 2):
        mask = np.where(rng.random(rows) < 0.1, BEGINS, REAL).astype(np.int32)
        mask[1:] *= rng.random(rows - 1) < 0.8
        if step % 16 == 0:
            mask[mask == REAL] = BEGINS
        for layer, source in enumerate(layers):
            both.request(layer, trace.experts[starts + step, source].astype(np.int32), mask)
    both.check_totals()


@pytest.mark.parametrize("setting", ["lrfu:2", "product", "lru", "lfu", "static"])
def test_odd_shapes_and_padding_agree(setting):
    # Neither 60 nor 5 nor the picks are powers of two, and the layers differ in all they may differ in.
    rng = np.random.default_rng(3)
    both = Both(CacheShape((256, 1280), (60, 5), (7, 4), k=3, max_rows=3), setting)
    for step in range(12):
        rows = 1 + step % 3
        mask = rng.choice([PADDING, REAL, BEGINS, BEGINS], rows).astype(np.int32)
        for layer, n_experts in enumerate((60, 5)):
            picks = np.array([rng.permutation(n_experts)[:3] for _ in range(rows)], np.int32)
            both.request(layer, picks, mask)
    both.check_totals()


@pytest.mark.parametrize(("n_experts", "n_slots", "k"), [(1, 1, 1), (1, 0, 1), (3, 2, 3), (384, 300, 8)])
@pytest.mark.parametrize("setting", ["lrfu:16", "product"])
def test_extreme_shapes_agree(n_experts, n_slots, k, setting):
    rng = np.random.default_rng(4)
    both = Both(CacheShape((256,), (n_experts,), (n_slots,), k, max_rows=2), setting)
    for step in range(6):
        mask = np.full(2, BEGINS if step % 3 == 2 else REAL, np.int32)
        both.request(0, np.array([rng.permutation(n_experts)[:k] for _ in range(2)], np.int32), mask)


def test_scores_below_the_normal_range_agree():
    # A flush of the smallest numbers to zero on one side alone would change the order of victims.
    both = Both(CacheShape((256,), (4,), (2,), k=1, max_rows=1), "lrfu:1")
    tiny = np.array([2**-130, 2**-129, 2**-149, 0], np.float32)
    both.states[0].score[:] = tiny
    both.cache._buffers.scores[0, 0, :4] = torch.from_numpy(tiny.view(np.int32))
    for e in (0, 1, 2, 3, 0):
        both.request(0, np.array([[e]], np.int32), np.ones(1, np.int32))


def test_factors_below_the_normal_range_agree():
    # An eighth of the smallest numbers is rounded before it fades, and products of small factors vanish.
    rng = np.random.default_rng(6)
    both = Both(CacheShape((256,), (12,), (5,), k=2, max_rows=2), "product")
    factors = np.exp2(rng.uniform(-149, -120, (4, 12))).astype(np.float32)
    both.states[0].scores[:] = factors
    both.cache._buffers.scores[0, :, :12] = torch.from_numpy(factors.view(np.int32))
    for marks in (
        (REAL, REAL),
        (BEGINS, PADDING),
        (BEGINS, BEGINS),
        (PADDING, PADDING),
        (REAL, BEGINS),
        (BEGINS, BEGINS),
    ):
        picks = np.array([rng.permutation(12)[:2] for _ in range(2)], np.int32)
        both.request(0, picks, np.array(marks, np.int32))


def test_a_border_is_one_for_the_whole_batch_or_none():
    rng = np.random.default_rng(7)
    both = Both(CacheShape((256,), (16,), (6,), k=3, max_rows=8), "product")
    for _ in range(25):
        rows = int(rng.integers(1, 9))
        mask = rng.choice([PADDING, REAL, BEGINS], rows, p=[0.2, 0.05, 0.75]).astype(np.int32)
        both.request(0, np.array([rng.permutation(16)[:3] for _ in range(rows)], np.int32), mask)
    both.check_totals()


def test_a_seeded_state_is_gone_on_from():
    rng = np.random.default_rng(5)
    both = Both(CacheShape((256,), (12,), (6,), k=2, max_rows=1), "lru")
    both.cache.seed(0, [9, 4, 7])
    both.states[0].seed([9, 4, 7])
    for _ in range(10):
        both.request(0, rng.permutation(12)[None, :2].astype(np.int32), np.ones(1, np.int32))
