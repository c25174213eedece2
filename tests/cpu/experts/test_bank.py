"""The bank: every expert's span holds its matrices, and page-locking gives back what it took where it fails."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hotset.errors import PlacementError
from hotset.experts import bank as module
from hotset.experts.bank import ExpertBank
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.random import random_blocks
from lockers import FakeLocker
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


@pytest.fixture
def small_pieces(monkeypatch) -> int:
    monkeypatch.setattr(module, "LOCK_CHUNK", 64 << 10)
    return 64 << 10


def test_page_locking_covers_the_bank_and_release_undoes_it(small_pieces):
    bank, locker, seen = ExpertBank(SPANS, n_experts=3), FakeLocker(), []
    assert bank.page_lock(locker, progress=seen.append)
    assert sum(locker.locked.values()) == seen[-1] == bank.locked_bytes == bank.n_bytes
    assert seen == sorted(seen)
    assert len(locker.locked) == -(-bank.n_bytes // small_pieces) > 1
    assert all(bank.is_locked(layer) for layer in range(2))
    bank.release()
    assert not locker.locked
    assert bank.locked_bytes == 0


def test_a_refusal_keeps_what_was_locked_but_for_one_piece_that_the_driver_may_need(small_pieces):
    bank = ExpertBank(SPANS, n_experts=3)
    for pieces in range(4):
        locker = FakeLocker(pieces * small_pieces)
        assert not bank.page_lock(locker)
        assert bank.locked_bytes == sum(locker.locked.values()) == max(0, pieces - 1) * small_pieces
        bank.release()


def test_a_limit_locks_whole_pages_from_the_start(small_pieces):
    bank, locker = ExpertBank(SPANS, n_experts=3), FakeLocker()
    assert bank.page_lock(locker, 3 * small_pieces // 2 + 5000)
    assert bank.locked_bytes == sum(locker.locked.values()) == 3 * small_pieces // 2 + 4096
    assert not bank.is_locked(1)
    bank.release()
    assert bank.page_lock(locker, 0)
    assert not locker.locked
    assert bank.page_lock(locker, bank.n_bytes + 1)
    assert bank.locked_bytes == bank.n_bytes


def test_copies_are_cut_where_pieces_meet_and_where_locking_ends(small_pieces):
    bank = ExpertBank(SPANS, n_experts=3)
    bank.page_lock(FakeLocker(), 2 * small_pieces + 8192)
    border = bank.locked_bytes
    assert list(bank.runs(small_pieces - 100, 3 * small_pieces)) == [
        (100, True),
        (small_pieces, True),
        (8192, True),
        (2 * small_pieces - 100 - 8192, False),
    ]
    assert list(bank.runs(0, 10)) == [(10, True)]
    assert list(bank.runs(border, 10)) == [(10, False)]
    assert list(bank.runs(border - 1, 1)) == [(1, True)]
    assert list(bank.runs(5, 0)) == []


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells how memory is mapped")
def test_the_bank_is_nobody_elses_and_asks_for_huge_pages():
    bank = ExpertBank(SPANS, n_experts=64)
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    bounds = [[int(end, 16) for end in m.split(" ", 1)[0].split("-")] for m in mappings]
    own = next(m for m, (start, end) in zip(mappings, bounds, strict=True) if start <= bank.address < end)
    assert own.split()[1] == "rw-p"
    assert "hg" in own.rsplit("VmFlags:", 1)[1].split()
