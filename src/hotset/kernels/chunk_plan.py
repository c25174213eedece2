"""Which rows of a chunk each expert computes: its (row, pick) pairs sorted by expert and cut into tiles, on the device alone.

Experts are processed in a given order, cut into waves: first those that are resident, then those of each staging buffer in turn.
Pairs of an expert keep the order of their rows, so that the plan is the same every time. Nothing here waits for the device:
everything has the size of its upper bound, and what the later kernels need to know they read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import cdiv, next_power_of_2
from hotset.quant.triton import tl

if TYPE_CHECKING:
    import torch

# Pairs that one program counts and places; all pairs of it are compared with each other.
BLOCK = 64
# Blocks that the summing kernel takes at once.
SUM_BLOCK = 32
WAVE_BLOCK = 32


# One program per block of pairs. E = experts, padded to a power of two. Counts vary: specialising would compile variants.
@triton.jit(do_not_specialize=["n_pairs"], do_not_specialize_on_alignment=["order"])  # type: ignore[untyped-decorator]
def count_kernel(
    picks: tl.tensor,  # int32 [n_pairs]
    order: tl.tensor,  # int32 [N_EXPERTS], rank -> expert
    block_counts: tl.tensor,  # int32 [blocks, E]
    n_pairs: tl.tensor,
    N_EXPERTS: tl.constexpr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rank = tl.arange(0, E)
    pick = tl.load(picks + pair, mask=pair < n_pairs, other=-1)
    expert = tl.load(order + rank, mask=rank < N_EXPERTS, other=-2)
    count = tl.sum((pick[:, None] == expert[None, :]).to(tl.int32), 0)
    tl.store(block_counts + tl.program_id(0) * E + rank, count)


# One program: running sums over blocks for every rank, then over ranks.
@triton.jit(do_not_specialize=["n_blocks", "n_waves"], do_not_specialize_on_alignment=["wave_ranks"])  # type: ignore[untyped-decorator]
def sum_kernel(
    block_counts: tl.tensor,  # int32 [blocks, E]; becomes where each block's pairs of a rank begin
    wave_ranks: tl.tensor,  # int32 [n_waves + 1], the first rank of each wave
    counts: tl.tensor,  # int32 [E], pairs of a rank
    rank_tiles: tl.tensor,  # int32 [E], the first tile of a rank
    wave_pairs: tl.tensor,  # int32 [n_waves + 1]
    wave_tiles: tl.tensor,  # int32 [n_waves + 1]
    n_blocks: tl.tensor,
    n_waves: tl.tensor,
    TILE: tl.constexpr,
    E: tl.constexpr,
    SUM_BLOCK: tl.constexpr,
    WAVE_BLOCK: tl.constexpr,
) -> None:
    rank = tl.arange(0, E)[None, :]
    total = tl.zeros([1, E], tl.int32)
    first = 0
    while first < n_blocks:
        block = first + tl.arange(0, SUM_BLOCK)[:, None]
        count = tl.load(block_counts + block * E + rank, mask=block < n_blocks, other=0)
        tl.store(block_counts + block * E + rank, total + tl.cumsum(count, 0) - count, mask=block < n_blocks)
        total += tl.sum(count, 0)[None, :]
        first += SUM_BLOCK
    total = tl.reshape(total, [E])
    rank = tl.arange(0, E)
    tiles = (total + TILE - 1) // TILE
    tile_ends = tl.cumsum(tiles, 0)
    tl.store(counts + rank, total)
    tl.store(rank_tiles + rank, tile_ends - tiles)
    first = 0
    while first <= n_waves:
        wave = first + tl.arange(0, WAVE_BLOCK)
        cut = tl.load(wave_ranks + wave, mask=wave <= n_waves, other=0)
        before = rank[None, :] < cut[:, None]
        tl.store(wave_pairs + wave, tl.sum(tl.where(before, total[None, :], 0), 1), mask=wave <= n_waves)
        tl.store(wave_tiles + wave, tl.sum(tl.where(before, tiles[None, :], 0), 1), mask=wave <= n_waves)
        first += WAVE_BLOCK


# One program per block of pairs and of tiles.
@triton.jit(do_not_specialize=["n_pairs"], do_not_specialize_on_alignment=["order"])  # type: ignore[untyped-decorator]
def place_kernel(
    picks: tl.tensor,  # int32 [n_pairs]
    order: tl.tensor,  # int32 [N_EXPERTS]
    block_starts: tl.tensor,  # int32 [blocks, E]
    counts: tl.tensor,  # int32 [E]
    rank_tiles: tl.tensor,  # int32 [E]
    pairs: tl.tensor,  # int32 [n_pairs]
    tiles: tl.tensor,  # int32 [max_tiles, 3]: expert, first pair, number of pairs
    n_pairs: tl.tensor,
    TILE: tl.constexpr,
    N_EXPERTS: tl.constexpr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rank = tl.arange(0, E)
    count = tl.load(counts + rank)
    starts = tl.cumsum(count, 0) - count
    expert = tl.load(order + rank, mask=rank < N_EXPERTS, other=-2)

    pick = tl.load(picks + at, mask=at < n_pairs, other=-1)
    i = tl.arange(0, BLOCK)
    earlier = tl.sum(((pick[:, None] == pick[None, :]) & (i[None, :] < i[:, None])).to(tl.int32), 1)
    begin = starts + tl.load(
        block_starts + tl.program_id(0) * E + rank, mask=tl.program_id(0) * BLOCK < n_pairs, other=0
    )
    own = tl.sum(tl.where(pick[:, None] == expert[None, :], begin[None, :], 0), 1)
    tl.store(pairs + own + earlier, at, mask=at < n_pairs)

    first_tile = tl.load(rank_tiles + rank)
    n_tiles = (count + TILE - 1) // TILE
    here = (at[:, None] >= first_tile[None, :]) & (at[:, None] < (first_tile + n_tiles)[None, :])
    used = tl.max(here.to(tl.int32), 1) > 0
    n_before = (at[:, None] - first_tile[None, :]) * TILE
    tl.store(tiles + at * 3, tl.sum(tl.where(here, expert[None, :], 0), 1), mask=used)
    tl.store(tiles + at * 3 + 1, tl.sum(tl.where(here, starts[None, :] + n_before, 0), 1), mask=used)
    left = tl.minimum(tl.sum(tl.where(here, count[None, :] - n_before, 0), 1), TILE)
    tl.store(tiles + at * 3 + 2, left, mask=used)


@dataclass(frozen=True, eq=False)
class ChunkPlan:
    """The plan of one layer's chunk, int32 on the device; layers overwrite each other's. Pair p = row * n_picks + j.

    `pairs` [max_pairs] are the pairs in order of rank; `tiles` [max_tiles, 3] their cuts: expert, first of `pairs`, how many;
    wave w has pairs wave_pairs[w] .. wave_pairs[w + 1] and tiles wave_tiles[w] .. wave_tiles[w + 1]; `counts` are the pairs of each rank.
    """

    n_experts: int
    n_picks: int
    tile: int
    pairs: torch.Tensor
    tiles: torch.Tensor
    wave_pairs: torch.Tensor
    wave_tiles: torch.Tensor
    counts: torch.Tensor
    rank_tiles: torch.Tensor
    block_counts: torch.Tensor

    @classmethod
    def empty(
        cls, max_rows: int, n_picks: int, n_experts: int, max_waves: int, tile: int, device: torch.device | str
    ) -> ChunkPlan:
        """Allocate for chunks of up to `max_rows` rows; `tile` is the number of pairs in a full tile (ChunkTuning.experts)."""
        import torch

        max_pairs = max_rows * n_picks
        padded = next_power_of_2(n_experts)

        def numbers(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            n_experts,
            n_picks,
            tile,
            pairs=numbers(max_pairs),
            tiles=numbers(max_pairs // tile + n_experts, 3),
            wave_pairs=numbers(max_waves + 1),
            wave_tiles=numbers(max_waves + 1),
            counts=numbers(padded),
            rank_tiles=numbers(padded),
            block_counts=numbers(cdiv(max_pairs, BLOCK), padded),
        )

    def make(self, picks: torch.Tensor, order: torch.Tensor, wave_ranks: torch.Tensor) -> None:
        """Plan for picks int32 [m, n_picks]: `order` int32 [n_experts] says which expert has which rank, wave w takes ranks wave_ranks[w] .. [w + 1].

        wave_ranks int32 [n_waves + 1] begins with 0 and ends with n_experts. Three launches, no wait.
        """
        n_pairs = picks.numel()
        n_blocks = cdiv(n_pairs, BLOCK)
        assert picks.shape[1] == self.n_picks
        assert picks.is_contiguous()
        assert n_pairs <= len(self.pairs)
        assert order.numel() == self.n_experts
        assert 2 <= wave_ranks.numel() <= len(self.wave_tiles)
        shape = {"N_EXPERTS": self.n_experts, "E": len(self.counts), "BLOCK": BLOCK}
        count_kernel[(n_blocks,)](picks, order, self.block_counts, n_pairs, **shape, num_warps=8)
        sum_kernel[(1,)](
            self.block_counts,
            wave_ranks,
            self.counts,
            self.rank_tiles,
            self.wave_pairs,
            self.wave_tiles,
            n_blocks,
            wave_ranks.numel() - 1,
            TILE=self.tile,
            E=len(self.counts),
            SUM_BLOCK=SUM_BLOCK,
            WAVE_BLOCK=WAVE_BLOCK,
            num_warps=8,
        )
        place_kernel[(max(n_blocks, cdiv(len(self.tiles), BLOCK)),)](
            picks,
            order,
            self.block_counts,
            self.counts,
            self.rank_tiles,
            self.pairs,
            self.tiles,
            n_pairs,
            TILE=self.tile,
            **shape,
            num_warps=8,
        )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    shape = {"N_EXPERTS": 160, "E": 256, "BLOCK": BLOCK}
    ints = dict.fromkeys(
        ("picks", "order", "block_counts", "block_starts", "counts", "rank_tiles", "pairs", "tiles"), "*i32"
    )
    ints |= dict.fromkeys(("wave_ranks", "wave_pairs", "wave_tiles"), "*i32")
    ints |= dict.fromkeys(("n_pairs", "n_blocks", "n_waves"), "i32")

    def case(name: str, kernel: Any, constants: dict[str, int]) -> CompileCase:
        types = {argument: t for argument, t in ints.items() if argument in kernel.arg_names}
        return CompileCase(name, kernel, types, constants, num_warps=8)

    sums = {"TILE": 128, "E": 256, "SUM_BLOCK": SUM_BLOCK, "WAVE_BLOCK": WAVE_BLOCK}
    return [
        case("plan count", count_kernel, shape),
        case("plan sum", sum_kernel, sums),
        case("plan place", place_kernel, shape | {"TILE": 128}),
    ]
