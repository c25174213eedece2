"""Experts that the GPU cannot read: the host brings them through a bounce buffer, and the same bytes arrive."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hotset.engine.page_locking import page_lock, relay_for  # noqa: E402
from hotset.errors import DeviceError  # noqa: E402
from hotset.experts import bounce as bounce_module  # noqa: E402
from hotset.experts.bank import ExpertBank  # noqa: E402
from hotset.experts.bounce import N_PIECES, Bounce  # noqa: E402
from hotset.experts.cache import ExpertCache  # noqa: E402
from hotset.experts.policy import Policy  # noqa: E402
from hotset.experts.relay import FetchList, Relay  # noqa: E402
from hotset.experts.slots import CacheShape  # noqa: E402
from hotset.experts.waves import BouncePieces, ExpertWaves, Staging  # noqa: E402
from hotset.host.copying import JOB_FIELDS, relay_callback, spread_copy  # noqa: E402
from hotset.quant.layout import MatrixLayout, SpanLayout  # noqa: E402
from lockers import FakeLocker  # noqa: E402
from samples import BY_NAME  # noqa: E402

N_EXPERTS, K, MAX_ROWS = 10, 3, 2


def span(width: int) -> SpanLayout:
    shapes = ((16, 256), (16, 256), (width, 32))
    formats = (BY_NAME[name] for name in ("Q4_K", "Q4_K", "Q8_0"))
    return SpanLayout(("gate", "up", "down"), tuple(MatrixLayout(f, *s) for f, s in zip(formats, shapes, strict=True)))


SPANS = (span(272), span(64), span(528))


def make_bank(locked: float, n_bounce: int | None = None) -> ExpertBank:
    """Every byte of a span tells its layer, expert and place; a share of the bank is page-locked."""
    bank = ExpertBank(SPANS, N_EXPERTS)
    bank.data[:] = np.random.default_rng(0).integers(0, 255, bank.n_bytes, np.uint8)
    page_lock(bank, FakeLocker(), int(locked * bank.n_bytes), n_bounce or MAX_ROWS * K, lambda _: None)
    return bank


def make_cache(bank: ExpertBank, n_slots: int, setting: str = "lrfu:16") -> ExpertCache:
    shape = CacheShape(bank.span_bytes, (N_EXPERTS,) * 3, (n_slots,) * 3, K, MAX_ROWS)
    relay = relay_for(bank, MAX_ROWS * K, None)
    return ExpertCache(shape, Policy.parse(setting), bank.base, "cpu", poison=True, relay=relay)


def bytes_at(cache: ExpertCache, address: int, n: int) -> np.ndarray:
    area = next(a for a in (cache._pool, cache._overflow) if 0 <= address - a.data_ptr() < max(a.numel(), 1))
    return area.numpy()[address - area.data_ptr() :][:n]


@pytest.mark.parametrize(
    ("locked", "n_slots", "n_bounce"), [(0, 4, 1), (0.4, 4, None), (0.7, 0, 4), (0.99, 4, 4), (1, 4, None)]
)
def test_every_expert_arrives_whole_whatever_share_is_locked(locked, n_slots, n_bounce):
    bank = make_bank(locked, n_bounce)
    assert (bank.bounce is None) == (locked == 1)
    whole = make_bank(1)
    cache, plain = make_cache(bank, n_slots), make_cache(whole, n_slots)
    rng = np.random.default_rng(1)
    for step in range(3):
        rows = 1 + step % 2
        mask = torch.tensor([1, 1][:rows], dtype=torch.int32)
        for layer in range(3):
            picks = np.array([rng.permutation(N_EXPERTS)[:K] for _ in range(rows)], np.int32)
            for c in (cache, plain):
                c.lookup(layer, torch.from_numpy(picks), mask)
                c.fetch(layer)
            for address, expert in zip(cache.address.tolist(), picks.reshape(-1).tolist(), strict=False):
                if address:
                    assert np.array_equal(bytes_at(cache, address, bank.span_bytes[layer]), bank.span(layer, expert))
            assert np.array_equal(cache.state(layer).slot_of_expert, plain.state(layer).slot_of_expert)
    assert cache.stats() == plain.stats()


@pytest.mark.parametrize("n_bounce", [1, None])
def test_experts_that_are_resident_from_the_start_are_brought_too(n_bounce):
    bank = make_bank(0.5, n_bounce)
    cache = make_cache(bank, 9, "static")
    for layer in range(3):
        for expert, address in enumerate(cache.slot_addresses()[layer].tolist()):
            assert (address == 0) == (expert == 9)
            if address:
                assert np.array_equal(bytes_at(cache, address, bank.span_bytes[layer]), bank.span(layer, expert))


def test_the_relay_translates_between_the_addresses_of_host_and_device():
    # The device sees the bank 1,000 and the bounce buffer 77 bytes further on; the second of three spans is not locked.
    there, bounce = np.arange(3 * 64, dtype=np.uint8), np.full(128, 255, np.uint8)
    listed, out = FetchList.empty(4, pinned=False), FetchList.empty(4, pinned=False)
    base = there.ctypes.data
    listed.source[:3] = torch.tensor([base + 1000, base + 64 + 1000, base + 1000])
    listed.target[:3] = torch.tensor([11, 22, 33])
    listed.count.fill_(3)
    for first, expected in (
        (0, [(base + 1000, 11), (bounce.ctypes.data + 64 + 77, 22)]),
        (2, [(base + 1000, 33)]),
        (4, []),
    ):
        bounce.fill(255)
        job = dict(zip(JOB_FIELDS, (*listed.addresses, *out.addresses, first, 2, 64), strict=False))
        job |= {"shift": 1000, "locked_end": base + 64, "bounce": bounce.ctypes.data, "bounce_shift": 77}
        relay_callback().ctypes(np.array([job[f] for f in JOB_FIELDS], np.int64).ctypes.data)
        n = int(out.count)
        assert list(zip(out.source[:n].tolist(), out.target[:n].tolist(), strict=True)) == expected
        assert np.array_equal(bounce[64:], there[64:128] if first == 0 else np.full(64, 255))


def test_rounds_are_as_few_as_the_bounce_buffer_allows():
    bank = make_bank(0, 4)
    calls: list[tuple[int, int]] = []
    relay = Relay(bank, bank.bounce, 6, None)
    relay._call = lambda function, job: calls.append((function, job))
    for n_picks, rounds in ((1, 1), (4, 1), (5, 2), (6, 2)):
        calls.clear()
        assert len(list(relay.rounds(1, n_picks))) == rounds == len(set(calls))
    assert {function for function, _ in calls} == {relay_callback().address}


@pytest.mark.parametrize("locked", [0, 0.3, 0.6])
def test_waves_of_a_prompt_bring_the_same_bytes(locked, monkeypatch):
    monkeypatch.setattr(bounce_module, "PIECE_BYTES", 1)  # pieces of one span, so that a wave takes several
    bank = make_bank(locked)
    cache = make_cache(bank, 0)
    waves = ExpertWaves(bank, cache, Staging(bank.span_bytes, N_EXPERTS, "cpu"), take_all=False)
    for layer in range(3):
        picks = torch.tensor([[0, 1, 2], [4, 7, 8]], dtype=torch.int32)
        cut = waves.cut(layer, picks)
        for wave in range(cut.n_waves):
            with waves.present(layer, wave):
                for expert in picks.reshape(-1).tolist():
                    address, n = int(cut.address[expert]), bank.span_bytes[layer]
                    buffer = next(b for b in waves._staging.buffers if 0 <= address - b.data_ptr() < b.numel())
                    got = buffer.numpy()[address - buffer.data_ptr() :][:n]
                    assert np.array_equal(got, bank.span(layer, expert))


def test_pieces_take_turns_and_cut_what_is_longer():
    bounce = Bounce(FakeLocker(), 256, 2)
    pieces = BouncePieces(bounce, torch.device("cpu"))
    n = 2 * bounce.piece_bytes + 5
    source = torch.randint(0, 255, (n,), dtype=torch.uint8)
    target = torch.zeros(n, dtype=torch.uint8)
    pieces.copy(target, source)
    assert torch.equal(target, source)
    assert pieces._turn == 3 % N_PIECES


@pytest.mark.parametrize("n", [0, 1, 255, 256 << 10, (1 << 20) + 3])
def test_copies_by_many_threads_are_whole(n):
    source, target = np.random.default_rng(n).integers(0, 255, n + 9, np.uint8), np.zeros(n + 9, np.uint8)
    spread_copy(target.ctypes.data + 3, source.ctypes.data, n)
    assert np.array_equal(target[3 : 3 + n], source[:n])
    assert not target[:3].any()
    assert not target[3 + n :].any()


def test_a_bounce_buffer_takes_what_the_driver_gives_and_gives_it_back():
    least = 256 + N_PIECES * bounce_module.PIECE_BYTES
    for limit, capacity in (
        (None, 64),
        (least + 63 * 256, 64),
        (least + 31 * 256, 32),
        (least + 6 * 256, 4),
        (least, 1),
    ):
        locker = FakeLocker(limit)
        bounce = Bounce(locker, 256, 64)
        assert bounce.capacity == capacity
        assert [len(piece) for piece in bounce.pieces] == [bounce.piece_bytes] * N_PIECES
        del bounce
        assert not locker.locked


def test_not_even_one_span_locked_is_a_named_error():
    with pytest.raises(DeviceError, match=r"would not page-lock \d+ MiB of host memory, .*ulimit -l.* --device cpu"):
        Bounce(FakeLocker(1000), 256, 64)


@pytest.mark.parametrize(("limit", "driver"), [(0, False), (100_000, False), (None, True)])
def test_the_line_that_says_so_has_both_sizes_the_reason_and_the_cost(limit, driver, monkeypatch):
    monkeypatch.setattr("hotset.experts.bank.LOCK_CHUNK", 128 << 10)
    monkeypatch.setattr(bounce_module, "PIECE_BYTES", 1)
    bank = ExpertBank(SPANS, N_EXPERTS)
    locker = FakeLocker(bank.n_bytes // 2 if driver else None)
    line = page_lock(bank, locker, limit, 4, lambda _: None)
    why = "the driver refused more" if driver else "as asked"
    n = sum(not bank.is_locked(layer) for layer in range(3))
    assert line.startswith(f"0 of 0 MiB of the experts are page-locked ({why}): in {n} of 3 layers one CPU thread")
    assert "GB/s" in line
    assert "--page-lock" in line
    assert 0 < bank.bounce.capacity <= 4


def test_a_bank_that_is_locked_as_a_whole_needs_no_relay_and_no_word():
    bank = ExpertBank(SPANS, N_EXPERTS)
    assert page_lock(bank, FakeLocker(), None, 4, lambda _: None) is None
    assert relay_for(bank, 4, None) is None
