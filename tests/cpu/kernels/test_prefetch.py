from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.kernels.fetch import FetchLaunch, fetch
from hotset.kernels.prefetch import MISSED, N_GUESSES, Guesses, PrefetchLaunch, guess, learn, prefetch

POISON = 0xFF
BLOCK_BYTES = 1024
LAUNCH = PrefetchLaunch(n_programs=4, block_words=BLOCK_BYTES // 8, num_warps=1)
FETCH = FetchLaunch(n_programs=3, block_words=BLOCK_BYTES // 8, num_warps=1, n_copiers=2)


def empty(n_layers=3, padded=16):
    def zeros(*size, dtype):
        return torch.zeros(*size, dtype=dtype)

    return Guesses(
        odds=zeros(n_layers, padded, padded, dtype=torch.float32),
        right=zeros(n_layers, 2, dtype=torch.float32),
        guessed=zeros(n_layers, 2, dtype=torch.int32).fill_(-1),
        source=zeros(N_GUESSES, dtype=torch.int64),
        area=zeros(N_GUESSES, dtype=torch.int64),
        calls=zeros(1, dtype=torch.int32),
        done=zeros(LAUNCH.n_programs, dtype=torch.int32),
        counts=zeros(n_layers, 2, dtype=torch.int64),
    )


def spans(n, span_bytes):
    return torch.randint(0, POISON, (n, span_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))


def addresses(buffer, rows):
    return torch.tensor([buffer[row].data_ptr() for row in rows], dtype=torch.int64)


class TestFetch:
    """What came ahead, whole, in part or not at all, and what is left make the span."""

    @pytest.mark.parametrize("span_bytes", [256, 1024, 3072, 5376])
    @pytest.mark.parametrize("cut", [0, 256, 2048])
    @pytest.mark.parametrize(
        "done", [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 1), (3, 3, 3, 3), (9, 9, 9, 9)]
    )
    def test_a_span_is_whole_wherever_its_bytes_came_from(self, span_bytes, cut, done):
        if cut >= span_bytes:
            pytest.skip("the part is empty")
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


class TestGuess:
    """Against NumPy: the experts without a slot, by the better of the two forecasts."""

    LAYERS, EXPERTS, PADDED, SPAN = 3, 12, 16, 512
    MAX_PICKS = 24

    def case(self, seed, n_rows, k):
        rng = np.random.default_rng(seed)
        state = empty(self.LAYERS, self.PADDED)
        # Multiples of 1/64: sums of them are exact in any order.
        odds = rng.integers(0, 64, (self.LAYERS, self.PADDED, self.PADDED)) / 64
        odds[:, :, self.EXPERTS :] = 0
        state.odds[:] = torch.from_numpy(odds)
        picked = np.full((self.LAYERS, self.MAX_PICKS), -1, np.int32)
        for row in range(n_rows):
            padded = rng.random() < 0.2
            for layer in range(self.LAYERS):
                if not padded:
                    one = rng.permutation(self.EXPERTS)[:k] | MISSED * (rng.random(k) < 0.5)
                    picked[layer, row * k : (row + 1) * k] = one
        likely = np.stack([rng.permutation(self.EXPERTS)[:k] for _ in range(n_rows)]).astype(np.int32)
        slot_of = np.where(rng.random((self.LAYERS, self.PADDED)) < 0.5, 1, -1).astype(np.int32)
        return state, odds, picked, likely, slot_of

    def expected(self, odds, picked, likely, slot_of, layer, n_rows, k):
        scores = np.zeros((2, self.PADDED))
        for row in range(n_rows):
            for rank, pick in enumerate(picked[layer - 1, row * k : (row + 1) * k]):
                if pick >= 0:
                    scores[0] += odds[layer, pick & 0xFFFF]
                    scores[1, likely[row, rank]] += k - rank
        scores[:, slot_of[layer] >= 0] = 0
        return [[int(e) for e in np.argsort(-s, kind="stable") if s[e] > 0] for s in scores]

    @pytest.mark.parametrize("seed", range(12))
    @pytest.mark.parametrize(("n_rows", "k"), [(1, 4), (3, 5)])
    @pytest.mark.parametrize("right", [(0.5, 0.4), (0.4, 0.5), (0.01, 0.02)])
    def test_guesses_the_likeliest_misses(self, seed, n_rows, k, right):
        state, odds, picked, likely, slot_of = self.case(seed, n_rows, k)
        layer, n = 1 + seed % 2, 1 + seed % N_GUESSES
        state.right[layer] = torch.tensor(right)
        table = torch.tensor([[1000, 0, 5000, self.SPAN, 4]] * self.LAYERS)
        calls = torch.tensor([8, 7, 6], dtype=torch.int32)
        guess(
            state, torch.from_numpy(picked), torch.from_numpy(likely), table, torch.from_numpy(slot_of), calls, layer,
            n_rows=n_rows, k=k, n=n,
        )  # fmt: skip
        by_odds, by_router = self.expected(odds, picked, likely, slot_of, layer, n_rows, k)
        best = (by_odds if right[0] > right[1] else by_router)[:n] if max(right) > 0.1 else []
        sources = [1000 + e * self.SPAN for e in best]
        assert state.source.tolist() == sources + [0] * (N_GUESSES - len(sources))
        assert state.guessed[layer].tolist() == [(f or [-1])[0] for f in (by_odds, by_router)]
        assert state.area.tolist() == [5000 + (self.MAX_PICKS - 1 - g) * self.SPAN for g in range(N_GUESSES)]
        assert state.calls.tolist() == [int(calls[layer])]

    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize(("n_rows", "k"), [(1, 4), (3, 5)])
    def test_learns_what_followed_what_and_which_forecast_was_right(self, seed, n_rows, k):
        state, odds, picked, _, _ = self.case(seed, n_rows, k)
        rng = np.random.default_rng(seed + 100)
        guessed = rng.integers(-1, self.EXPERTS, (self.LAYERS, 2)).astype(np.int32)
        state.guessed[:] = torch.from_numpy(guessed)
        state.right[:] = 0.5
        learn(state, torch.from_numpy(picked), n_rows=n_rows, k=k)
        right = np.full((self.LAYERS, 2), 0.5)
        for layer in range(1, self.LAYERS):
            rows = picked[:, : n_rows * k].reshape(self.LAYERS, n_rows, k)
            for row in range(n_rows):
                if rows[layer, row, 0] < 0 or rows[layer - 1, row, 0] < 0:
                    continue
                used = np.isin(np.arange(self.PADDED), rows[layer, row] & 0xFFFF)
                for pick in rows[layer - 1, row] & 0xFFFF:
                    odds[layer, pick] += (used - odds[layer, pick]) / 32
            for forecast in range(2):
                g = guessed[layer, forecast]
                if g >= 0 and np.any(rows[layer] >= 0):
                    right[layer, forecast] += (bool(np.any(rows[layer] == (g | MISSED))) - 0.5) / 64
        assert np.allclose(state.odds.numpy(), odds, atol=1e-5)
        assert np.allclose(state.right.numpy(), right, atol=1e-6)
