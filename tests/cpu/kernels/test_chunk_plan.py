"""The plan of a chunk against plain Python: pairs sorted by rank, stable; tiles; waves; experts without tokens."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch

from hotset.kernels.chunk_plan import ChunkPlan


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def expected(picks: torch.Tensor, order: list[int], wave_ranks: list[int], tile: int):
    flat = picks.flatten().tolist()
    pairs, tiles, wave_pairs, wave_tiles = [], [], [], []
    for rank, expert in enumerate(order):
        if rank in wave_ranks:
            wave_pairs += [len(pairs)] * wave_ranks.count(rank)
            wave_tiles += [len(tiles)] * wave_ranks.count(rank)
        own = [p for p, e in enumerate(flat) if e == expert]
        tiles += [[expert, len(pairs) + i, min(tile, len(own) - i)] for i in range(0, len(own), tile)]
        pairs += own
    return pairs, tiles, [*wave_pairs, len(pairs)], [*wave_tiles, len(tiles)]


def poisoned(rows: int, k: int, n: int, waves: int, tile: int) -> ChunkPlan:
    plan = ChunkPlan.empty(rows, k, n, waves, tile, "cpu")
    for t in (
        plan.pairs,
        plan.tiles,
        plan.wave_pairs,
        plan.wave_tiles,
        plan.counts,
        plan.rank_tiles,
        plan.block_counts,
    ):
        t.fill_(-99)
    return plan


def random_picks(rows: int, k: int, n: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return ints(np.stack([rng.permutation(n)[:k] for _ in range(rows)]))


@pytest.mark.parametrize(
    ("rows", "k", "n", "wave_ranks"),
    [
        (1, 2, 8, [0, 8]),
        (37, 2, 8, [0, 3, 3, 8]),
        (61, 3, 60, [0, 20, 40, 60]),
        (90, 8, 160, [0, 80, 90, 100, 160]),
    ],
)
def test_the_plan_is_that_of_plain_python(rows, k, n, wave_ranks):
    picks = random_picks(rows, k, n)
    order = np.random.default_rng(1).permutation(n).tolist()
    plan = poisoned(100, k, n, 5, tile=16)
    plan.make(picks, ints(order), ints(wave_ranks))
    pairs, tiles, wave_pairs, wave_tiles = expected(picks, order, wave_ranks, 16)
    assert plan.pairs[: len(pairs)].tolist() == pairs
    assert plan.tiles[: len(tiles)].tolist() == tiles
    assert plan.wave_pairs[: len(wave_ranks)].tolist() == wave_pairs
    assert plan.wave_tiles[: len(wave_ranks)].tolist() == wave_tiles
    flat = picks.flatten().tolist()
    assert plan.counts[:n].tolist() == [flat.count(e) for e in order]
    assert (plan.pairs[len(pairs) :] == -99).all()
    assert (plan.tiles[len(tiles) :] == -99).all()


def test_more_waves_than_one_block_of_them():
    picks = random_picks(20, 2, 40)
    plan = poisoned(20, 2, 40, 40, tile=4)
    plan.make(picks, ints(range(40)), ints(range(41)))
    _, _, wave_pairs, wave_tiles = expected(picks, list(range(40)), list(range(41)), 4)
    assert plan.wave_pairs.tolist() == wave_pairs
    assert plan.wave_tiles.tolist() == wave_tiles


def test_one_expert_may_take_every_row():
    plan = poisoned(70, 1, 4, 1, tile=32)
    plan.make(ints([[2]] * 70), ints([3, 2, 1, 0]), ints([0, 4]))
    assert plan.pairs.tolist() == list(range(70))
    assert plan.tiles[:3].tolist() == [[2, 0, 32], [2, 32, 32], [2, 64, 6]]
    assert plan.wave_tiles.tolist() == [0, 3]


def test_a_plan_may_be_used_again_for_fewer_rows():
    plan = poisoned(64, 2, 8, 2, tile=16)
    plan.make(random_picks(64, 2, 8), ints(range(8)), ints([0, 8]))
    picks = random_picks(5, 2, 8, seed=2)
    plan.make(picks, ints(range(8)), ints([0, 4, 8]))
    pairs, tiles, wave_pairs, wave_tiles = expected(picks, list(range(8)), [0, 4, 8], 16)
    assert plan.pairs[:10].tolist() == pairs
    assert plan.tiles[: len(tiles)].tolist() == tiles
    assert plan.wave_pairs.tolist() == wave_pairs
    assert plan.wave_tiles.tolist() == wave_tiles
