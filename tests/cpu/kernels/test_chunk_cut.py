"""The cut of a short chunk against plain Python: what is resident, what is fetched in which wave, and where it lies then."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

from hotset.kernels.chunk_cut import ChunkCut, Source, cut_chunk


def plain(picks, resident, ahead, source: Source, n_waves: int, turn: int):
    """Order, ranks where waves begin, addresses, and for each wave its (source, target) list."""
    picked = set(picks.flatten().tolist())
    experts = range(len(resident))
    address, waves = [r or a for r, a in zip(resident, ahead, strict=True)], []
    here = [e for e in experts if address[e]]
    missing = [e for e in experts if not address[e] and e in picked]
    rest = [e for e in experts if not address[e] and e not in picked]
    for w in range(n_waves):
        own = missing[w * source.wave_size : (w + 1) * source.wave_size]
        base = source.staging[(w + turn) % 2]
        for i, e in enumerate(own):
            address[e] = base + i * source.span_bytes
        waves.append([(source.bank + e * source.span_bytes, address[e]) for e in own])
    begins = [len(here) + min(w * source.wave_size, len(missing)) for w in range(n_waves)]
    in_place = sum(resident[e] != 0 for e in picked)
    fetched = len(missing) + np.count_nonzero(ahead)
    return here + missing + rest, [0, *begins, len(resident)], address, waves, [in_place, fetched]


@pytest.mark.parametrize(
    ("n", "k", "rows", "n_slots", "n_ahead", "wave_size"),
    [
        (8, 2, 1, 0, 0, 3),
        (8, 2, 9, 7, 1, 3),
        (60, 4, 12, 20, 5, 7),
        (128, 8, 31, 64, 12, 12),
        (160, 6, 40, 1, 159, 200),
    ],
)
def test_the_cut_is_that_of_plain_python(n, k, rows, n_slots, n_ahead, wave_size):
    rng = np.random.default_rng(n + rows)
    source = Source(bank=1 << 40, span_bytes=768, staging=(1 << 41, 1 << 42), wave_size=wave_size)
    cut = ChunkCut.empty(n, 1 + -(-n // wave_size), wave_size, "cpu")
    counts = torch.zeros(2, dtype=torch.int64)
    total = np.zeros(2, int)
    for turn in range(3):
        picks = torch.from_numpy(np.stack([rng.permutation(n)[:k] for _ in range(rows)]).astype(np.int32))
        resident, ahead = np.zeros((2, n), np.int64)
        experts = rng.permutation(n)
        resident[experts[:n_slots]] = rng.integers(1, 1 << 50, n_slots)
        ahead[experts[n_slots : n_slots + n_ahead]] = rng.integers(1, 1 << 50, n_ahead)
        n_waves = -(-min(n - n_slots - n_ahead, picks.numel()) // wave_size)
        cut_chunk(cut, picks, torch.from_numpy(resident), torch.from_numpy(ahead), counts, source, n_waves, turn)
        order, ranks, address, waves, used = plain(picks, resident.tolist(), ahead.tolist(), source, n_waves, turn)
        total += used
        assert cut.order.tolist() == order
        assert cut.wave_ranks[: n_waves + 2].tolist() == ranks
        chosen = [e for e in range(n) if resident[e] or ahead[e] or e in set(picks.flatten().tolist())]
        assert cut.address[chosen].tolist() == [address[e] for e in chosen]
        for w, wave in enumerate(waves):
            assert cut.n_fetch[w, 0] == len(wave)
            assert list(zip(cut.source[w].tolist(), cut.target[w].tolist(), strict=True))[: len(wave)] == wave
    assert counts.tolist() == total.tolist()
