"""Short prompts' experts: each that a row picked lies where the cut says when its wave is present, whatever is resident or came ahead of the picks."""

from __future__ import annotations

import ctypes
import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

from hotset.experts import ahead, waves
from hotset.experts.ahead import Ahead, likely_experts
from hotset.experts.bank import ExpertBank
from hotset.experts.cache import ExpertCache
from hotset.experts.picked_waves import PickedWaves
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape
from hotset.experts.waves import Staging
from hotset.quant.layout import MatrixLayout, SpanLayout
from samples import BY_NAME

N_EXPERTS, K, MAX_ROWS, N_LAYERS = 10, 3, 2, 4


def make_bank() -> ExpertBank:
    shapes = ((16, 32), (16, 32), (32, 32))
    small = SpanLayout(("gate", "up", "down"), tuple(MatrixLayout(BY_NAME["Q8_0"], *shape) for shape in shapes))
    large = SpanLayout(("gate", "up", "down"), tuple(MatrixLayout(BY_NAME["F16"], *shape) for shape in shapes))
    bank = ExpertBank((small, large, small, large), N_EXPERTS)
    bank.data[:] = np.random.default_rng(0).integers(0, 255, bank.n_bytes, np.uint8)
    return bank


def make_cache(bank: ExpertBank, n_slots: int) -> ExpertCache:
    shape = CacheShape(bank.span_bytes, (N_EXPERTS,) * N_LAYERS, (n_slots,) * N_LAYERS, K, MAX_ROWS)
    cache = ExpertCache(shape, Policy.parse("lrfu:16"), bank.base, "cpu", poison=True)
    for layer in range(N_LAYERS):
        cache.seed(layer, [(3 * i + layer) % N_EXPERTS for i in range(n_slots)])
    return cache


@pytest.mark.parametrize("n_slots", [0, 4, 9, 10])
@pytest.mark.parametrize("likely", [0, 2])
@pytest.mark.parametrize("wave_experts", [1, 2, 10])
def test_every_picked_expert_is_there_in_its_wave(n_slots, likely, wave_experts, monkeypatch):
    monkeypatch.setattr(ahead, "LIKELY", likely)
    bank = make_bank()
    monkeypatch.setattr(waves, "WAVE_BYTES", wave_experts * max(bank.span_bytes))
    cache = make_cache(bank, n_slots)
    staging = Staging(bank.span_bytes, N_EXPERTS, "cpu")
    rng = np.random.default_rng(n_slots)
    found = PickedWaves(cache, staging, 4)
    # The halves of the overflow area hold three experts each; with larger staging buffers the waves go there.
    n_ahead = min(wave_experts, N_EXPERTS - n_slots) if likely == 0 and wave_experts < 3 else 0
    resident = cache.slot_addresses() != 0
    for layer in range(N_LAYERS):
        picks = np.stack([rng.permutation(N_EXPERTS)[:K] for _ in range(4)]).astype(np.int32)
        cut = found.cut(layer, torch.from_numpy(picks))
        seen = set()
        for wave in range(cut.n_waves):
            with found.present(layer, wave):
                for expert in cut.order[int(cut.wave_ranks[wave]) : int(cut.wave_ranks[wave + 1])].tolist():
                    if expert in picks:
                        n = bank.span_bytes[layer]
                        assert ctypes.string_at(int(cut.address[expert]), n) == bank.span(layer, expert).tobytes()
                        seen.add(expert)
        picked = set(picks.reshape(-1).tolist())
        assert seen == picked
        missed = sum(not resident[layer, e] for e in picked)
        assert found.in_place[layer] == len(picked) - missed
        assert max(missed, n_ahead) <= found.streamed[layer] <= missed + n_ahead


def test_those_with_the_highest_scores_come_ahead():
    bank = make_bank()
    cache = make_cache(bank, 2)
    cache._buffers.scores[:, 0, :N_EXPERTS] = torch.arange(N_EXPERTS, dtype=torch.float32).view(torch.int32)
    resident = cache.slot_addresses()
    found = Ahead(cache, Staging(bank.span_bytes, N_EXPERTS, "cpu"), resident, 3)
    for layer in range(N_LAYERS):
        missing = np.flatnonzero(resident[layer] == 0)
        assert np.flatnonzero(found.address[layer].numpy()).tolist() == missing[-3:].tolist()


@pytest.mark.parametrize(("n_rows", "expected"), [(1, 0), (10, 0), (11, 12), (32, 12)])
def test_experts_come_ahead_where_half_of_them_would_be_picked_at_random(n_rows, expected):
    assert likely_experts(n_rows, 8, 128, 12) == expected
