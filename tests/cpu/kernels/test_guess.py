from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.kernels.guess import COMMON, FLOOR, MISSED, N_GUESSES, Guesses, guess
from hotset.kernels.learn import learn


class TestGuess:
    """Against NumPy: the experts without a slot, by the better of the two forecasts."""

    LAYERS, EXPERTS, PADDED, SPAN = 3, 12, 16, 512
    MAX_PICKS = 24

    def case(self, seed, n_rows, k):
        rng = np.random.default_rng(seed)
        state = Guesses.empty(self.LAYERS, self.PADDED, 4, "cpu")
        odds = rng.random((self.LAYERS, self.PADDED + 1, self.PADDED)).astype(np.float16).astype(np.float64)
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
            picks = picked[layer - 1, row * k : (row + 1) * k]
            if picks[0] < 0:
                continue
            common = (odds[layer, -1] + FLOOR) ** (COMMON * (k - 1))
            scores[0] += np.prod(odds[layer, picks & 0xFFFF] + FLOOR, axis=0) / common
            for rank in range(k):
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
        found = state.of(layer)
        assert found.source.tolist() == sources + [0] * (N_GUESSES - len(sources))
        assert state.guessed[layer].tolist() == [(f or [-1])[0] for f in (by_odds, by_router)]
        assert found.area.tolist() == [5000 + (self.MAX_PICKS - 1 - g) * self.SPAN for g in range(N_GUESSES)]
        assert found.calls.tolist() == [int(calls[layer])]

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
                    odds[layer, pick] += (used - odds[layer, pick]) / 16
                odds[layer, -1] += (used - odds[layer, -1]) / 64
            for forecast in range(2):
                g = guessed[layer, forecast]
                if g >= 0 and np.any(rows[layer] >= 0):
                    right[layer, forecast] += (bool(np.any(rows[layer] == (g | MISSED))) - 0.5) / 64
        assert np.allclose(state.odds.numpy(), odds, atol=1e-3)  # float16
        assert np.allclose(state.right.numpy(), right, atol=1e-6)
