"""The bank: every expert's span holds its matrices, and page-locking gives back what it took where it fails."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.errors import DeviceError, PlacementError
from hotset.experts import bank as module
from hotset.experts.bank import ExpertBank
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.random import random_blocks
from samples import BY_NAME

ROLES = ("gate", "up", "down")


def span(*names: str) -> SpanLayout:
    shapes = ((40, 256), (40, 256), (256, 32 * (1 + (names[2] in ("Q4_K", "Q6_K")) * 7)))
    return SpanLayout(ROLES, tuple(MatrixLayout(BY_NAME[n], *shape) for n, shape in zip(names, shapes, strict=True)))


SPANS = (span("Q4_K", "Q4_K", "Q6_K"), span("Q8_0", "F16", "Q5_0"))


def test_spans_hold_the_matrices_of_their_expert():
    bank = ExpertBank(SPANS, n_experts=3)
    raw = {}
    for layer, layout in enumerate(SPANS):
        for seed, role in enumerate(ROLES):
            m = layout.matrix(role)
            raw[layer, role] = random_blocks(m.fmt, 3 * m.rows, m.cols, seed).reshape(3, m.rows, -1)
            bank.fill(layer, role, raw[layer, role].reshape(-1))
    for (layer, role), blocks in raw.items():
        m, start = SPANS[layer].matrix(role), SPANS[layer].start(role)
        for expert in range(3):
            planes = bank.span(layer, expert)[start : start + m.n_bytes]
            assert np.array_equal(planes, m.from_blocks(blocks[expert]))


def test_spans_follow_each_other_aligned():
    bank = ExpertBank(SPANS, n_experts=3)
    assert bank.n_bytes == 3 * sum(bank.span_bytes)
    assert bank.base[1] - bank.base[0] == 3 * bank.span_bytes[0]
    assert all(address % 256 == 0 for address in bank.base)


def test_too_little_memory_is_told_with_both_sizes(monkeypatch):
    monkeypatch.setattr(module, "available_bytes", lambda: 1 << 20)
    with pytest.raises(PlacementError, match=r"the experts need 0\.0 GiB of host memory and 0\.0 GiB are available"):
        ExpertBank(SPANS, n_experts=3)


class Runtime:
    """Stands for the CUDA runtime; refuses from a number of pieces on."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, start: int, size: int, _flags: int) -> int:  # noqa: N802
        if len(self.locked) == self.limit:
            return 2
        self.locked[start] = size
        return 0

    def cudaHostUnregister(self, start: int) -> None:  # noqa: N802
        del self.locked[start]


def test_page_locking_covers_the_bank_and_release_undoes_it(monkeypatch):
    monkeypatch.setattr(module, "LOCK_CHUNK", 64 << 10)
    bank, runtime, seen = ExpertBank(SPANS, n_experts=3), Runtime(1000), []
    bank.page_lock(runtime, seen.append)
    assert sum(runtime.locked.values()) == seen[-1] == bank.n_bytes
    assert seen == sorted(seen)
    assert len(runtime.locked) == -(-bank.n_bytes // (64 << 10)) > 1
    bank.release()
    assert not runtime.locked


def test_a_refusal_says_how_far_locking_came_and_keeps_nothing_locked(monkeypatch):
    monkeypatch.setattr(module, "LOCK_CHUNK", 64 << 10)
    bank, runtime = ExpertBank(SPANS, n_experts=3), Runtime(1)
    with pytest.raises(DeviceError, match=r"page-locking the experts stopped at .* of .* GiB; raise the limit"):
        bank.page_lock(runtime)
    assert not runtime.locked
