"""Experts on their way into the bank: several threads fill it, page-locking follows, and what fails stops the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from hotset.engine import filling as module
from hotset.engine.filling import Filling, Gauge, Reader, StoppedError, fill
from hotset.engine.page_locking import page_lock
from hotset.errors import FileError
from hotset.experts import bank as bank_module
from hotset.experts.bank import ExpertBank
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.random import random_blocks
from lockers import FakeLocker
from samples import BY_NAME, TinyMoE

ROLES = ("gate", "up", "down")
N_EXPERTS = 7


def span(down: str) -> SpanLayout:
    shapes = {"gate": ("Q4_K", 40, 256), "up": ("Q8_0", 40, 256), "down": (down, 256, 32)}
    return SpanLayout(ROLES, tuple(MatrixLayout(BY_NAME[name], rows, cols) for name, rows, cols in shapes.values()))


SPANS = (span("Q8_0"), span("F16"), span("Q5_0"))


class Blocks:
    """A file of random experts that notes what is asked of it."""

    def __init__(self) -> None:
        self.raw = {
            (layer, role): random_blocks(m.fmt, N_EXPERTS * m.rows, m.cols, layer).reshape(-1)
            for layer, layout in enumerate(SPANS)
            for role in ROLES
            for m in [layout.matrix(role)]
        }
        self.let_go: list[int] = []
        self.reader = Reader(lambda layer, role: self.raw[layer, role], self.let_go.append)

    def check(self, bank: ExpertBank) -> None:
        for (layer, role), blocks in self.raw.items():
            m, start = SPANS[layer].matrix(role), SPANS[layer].start(role)
            for expert, own in enumerate(blocks.reshape(N_EXPERTS, m.rows, -1)):
                assert np.array_equal(bank.span(layer, expert)[start : start + m.n_bytes], m.from_blocks(own))


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("part_bytes", [1, 20_000, 1 << 30])
def test_any_number_of_threads_and_parts_fill_the_same_bank(n_threads, part_bytes, monkeypatch):
    monkeypatch.setattr(module, "PART_BYTES", part_bytes)
    blocks, bank, seen = Blocks(), ExpertBank(SPANS, N_EXPERTS), []
    bank.data[:] = 0xFF
    fill(bank, blocks.reader, n_threads, Gauge(), seen.append)
    blocks.check(bank)
    assert blocks.let_go == [0, 1, 2]
    assert np.array_equal(seen, np.cumsum([b.nbytes for b in blocks.raw.values()]))


class WatchedLocker(FakeLocker):
    """Keeps what the bank held where and when it was locked."""

    def __init__(self, bank: ExpertBank, **options) -> None:
        super().__init__(**options)
        self.bank = bank
        self.found: list[tuple[int, bytes]] = []

    def lock(self, start: int, n_bytes: int) -> bool:
        at = start - self.bank.address
        if 0 <= at < self.bank.n_bytes:
            self.found.append((at, self.bank.data[at : at + n_bytes].tobytes()))
        return super().lock(start, n_bytes)


@pytest.mark.parametrize("limit", [None, 100_000, 0])
def test_what_is_locked_was_filled_before(limit, monkeypatch):
    monkeypatch.setattr(bank_module, "LOCK_CHUNK", 16 << 10)
    blocks, bank = Blocks(), ExpertBank(SPANS, N_EXPERTS)
    locker = WatchedLocker(bank)
    with Filling(
        lambda gauge: fill(bank, blocks.reader, 2, gauge),
        lambda ready: page_lock(bank, locker, limit, 4, ready=ready),
    ) as filling:
        line = filling.finish()
    blocks.check(bank)
    assert (line is None) == (limit is None)
    assert len(locker.found) == -(-bank.locked_bytes // (16 << 10))
    for at, data in locker.found:
        assert bank.data[at : at + len(data)].tobytes() == data


def test_a_file_that_breaks_off_is_the_error_and_stops_the_locking():
    blocks, bank, locked = Blocks(), ExpertBank(SPANS, N_EXPERTS), []
    error = FileError("model.gguf", "blk.1", "cannot be read")

    def read(layer: int, role: str):
        if layer == 1:
            raise error
        return blocks.raw[layer, role]

    def lock(ready):
        ready(bank.n_bytes)
        locked.append("all")

    reader = Reader(read, blocks.let_go.append)
    with (
        pytest.raises(FileError) as raised,
        Filling(lambda gauge: fill(bank, reader, 2, gauge), lock) as filling,
    ):
        filling.finish()
    assert raised.value is error
    assert not locked


def test_locking_that_fails_is_the_error_and_stops_the_filling():
    blocks, bank = Blocks(), ExpertBank(SPANS, N_EXPERTS)
    failed = Event()

    def read(layer: int, role: str):
        assert failed.wait(30)
        return blocks.raw[layer, role]

    def lock(_ready):
        try:
            raise MemoryError("no more")
        finally:
            failed.set()

    reader = Reader(read, blocks.let_go.append)
    with (
        pytest.raises(MemoryError, match="no more"),
        Filling(lambda gauge: fill(bank, reader, 2, gauge), lock) as filling,
    ):
        filling.finish()


def test_leaving_early_ends_both_threads():
    started, ended = Event(), []

    def work(gauge: Gauge) -> None:
        started.set()
        try:
            gauge.wait(1)
        finally:
            ended.append("fill")

    def lock(ready) -> None:
        try:
            ready(1)
        finally:
            ended.append("lock")

    with Filling(work, lock):
        started.wait(30)
    assert sorted(ended) == ["fill", "lock"]


def test_a_gauge_lets_go_at_its_level_and_not_before():
    gauge, passed = Gauge(), []

    def follow() -> None:
        for level in (1, 5):
            gauge.wait(level)
            passed.append(level)

    thread = Thread(target=follow)
    thread.start()
    gauge.rise(4)
    gauge.rise(5)
    thread.join(30)
    assert passed == [1, 5]
    gauge.wait(5)
    gauge.stop()
    gauge.wait(5)
    with pytest.raises(StoppedError):
        gauge.wait(6)
    with pytest.raises(StoppedError):
        gauge.check()


PEAK = """
import sys
import hotset
from hotset.experts import bank as module

def memory(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))

hotset.load("demo", device="cpu", threads=1)
before = memory("VmRSS")
engine = hotset.load(sys.argv[1], device="cpu", threads=2)
print(memory("VmHWM") - before, engine.memory.total("host"), engine.memory.bytes_of("experts"))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_host_memory_holds_the_experts_once(tmp_path):
    zeros = {f"blk.{i}.ffn_{role}_exps.weight": ("Q8_0", 512 // 32 * 34) for i in range(6) for role in ROLES}
    path = TinyMoE(n_layers=6, d_model=512, d_expert=512, n_experts=32).write(tmp_path / "large.gguf", types=zeros)
    command = [sys.executable, "-c", PEAK, str(path)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    peak, whole, experts = map(int, answer.split())
    assert experts > 150e6
    # Beside the bank at most three tensors of the file are in memory, and what loading and one engine take.
    assert peak <= whole + 3 * experts / len(zeros) + (48 << 20)
