from __future__ import annotations

import pytest
import torch

from hotset.engine.nvml import Link
from hotset.kernels.fetch import FetchLaunch, fetch
from hotset.kernels.guess import N_GUESSES, Guesses
from hotset.kernels.prefetch import PrefetchLaunch, launch_for, prefetch

POISON = 0xFF
BLOCK_BYTES = 1024
LAUNCH = PrefetchLaunch(n_programs=4, block_words=BLOCK_BYTES // 8, num_warps=1)
FETCH = FetchLaunch(n_programs=3, block_words=BLOCK_BYTES // 8, num_warps=1, n_copiers=2)


def empty(n_layers=3, padded=16):
    return Guesses.empty(n_layers, padded, LAUNCH.n_programs, "cpu").of(1)


def spans(n, span_bytes):
    return torch.randint(0, POISON, (n, span_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def addresses(buffer, rows):
    return torch.tensor([buffer[row].data_ptr() for row in rows], dtype=torch.int64)


class TestFetch:
    """What came ahead, whole, in part or not at all, and what is left make the span."""

    @pytest.mark.parametrize(
        ("span_bytes", "cut"),
        [(span, cut) for span in (256, 1024, 3072, 5376) for cut in (0, 256, 2048) if cut < span],
    )
    @pytest.mark.parametrize(
        "done", [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 1), (3, 3, 3, 3), (9, 9, 9, 9)]
    )
    def test_a_span_is_whole_wherever_its_bytes_came_from(self, span_bytes, cut, done):
        bank, pool = spans(5, span_bytes), torch.full((4, span_bytes), POISON, dtype=torch.uint8)
        areas = torch.full((N_GUESSES, span_bytes), POISON, dtype=torch.uint8)
        state = empty()
        state.area[:] = addresses(areas, range(N_GUESSES))
        state.source[:2] = addresses(bank, [3, 1])  # 1 is needed, 3 is not
        state.done[:] = torch.tensor(done, dtype=torch.int32)
        blocks = -(-span_bytes // BLOCK_BYTES)
        for program, n in enumerate(done):
            for block in range(program, program + n * LAUNCH.n_programs, LAUNCH.n_programs):
                g, at = block // blocks, block % blocks * BLOCK_BYTES
                if g < 2:
                    # Another value than the bank's shows that it was taken from here.
                    areas[g, at : at + BLOCK_BYTES] = bank[[3, 1][g], at : at + BLOCK_BYTES] ^ 1
        lists = addresses(bank, [4, 1]), addresses(pool, [0, 2]), torch.tensor([2], dtype=torch.int32)
        counts = torch.zeros(2, dtype=torch.int64)
        for first, n in ((0, cut), (cut, span_bytes - cut)):
            if n:
                fetch(*lists, n, FETCH, first=first, span_bytes=span_bytes, guesses=state, counts=counts)
        gap = next(b for b in range(100) if done[b % 4] <= b // 4)
        ahead = min(max(0, gap - blocks) * BLOCK_BYTES, span_bytes)
        assert torch.equal(pool[0], bank[4])
        assert torch.equal(pool[2, :ahead], bank[1, :ahead] ^ 1)
        assert torch.equal(pool[2, ahead:], bank[1, ahead:])
        assert torch.all(pool[[1, 3]] == POISON)
        assert counts.tolist() == [sum(done) * BLOCK_BYTES, ahead]


@pytest.mark.parametrize(
    ("link", "programs"),
    [(None, 16), ((5, 16), 16), ((4, 16), 8), ((4, 8), 4), ((3, 16), 4), ((3, 8), 4), ((1, 1), 4), ((6, 16), 16)],
)
def test_a_slower_bus_takes_fewer_programs(link, programs):
    assert launch_for(link and Link(*link).rate).n_programs == programs


class TestPrefetch:
    def run(self, n, span_bytes, calls=(0, 7), expected=7):
        bank = spans(5, span_bytes)
        areas = torch.full((N_GUESSES, span_bytes), POISON, dtype=torch.uint8)
        state = empty()
        state.area[:] = addresses(areas, range(N_GUESSES))
        state.source[:n] = addresses(bank, [4, 0, 2, 1][:n])
        state.calls[0] = expected
        prefetch(state, torch.tensor(calls, dtype=torch.int32), 1, span_bytes, LAUNCH)
        return bank, areas, state

    @pytest.mark.parametrize("span_bytes", [256, 1280, 7168])
    @pytest.mark.parametrize("n", range(N_GUESSES + 1))
    def test_brings_all_guesses_while_nobody_asks(self, n, span_bytes):
        bank, areas, state = self.run(n, span_bytes)
        assert torch.equal(areas[:n], bank[[4, 0, 2, 1][:n]])
        assert torch.all(areas[n:] == POISON)
        assert int(state.done.sum()) == n * -(-span_bytes // BLOCK_BYTES)

    def test_brings_nothing_once_the_lookup_has_begun(self):
        _, areas, state = self.run(2, 7168, calls=(0, 8))
        assert torch.all(areas == POISON)
        assert state.done.tolist() == [0] * 4
