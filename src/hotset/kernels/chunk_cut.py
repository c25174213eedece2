"""Which experts a short chunk needs, decided on the device: those here where they lie, missing ones that a row picked in waves.

ranks: experts here (resident, or brought ahead of the picks), then missing ones that were picked, then the rest, each in order of their
number; wave w of the missing ones has ranks H + w S .. H + (w + 1) S, S experts to a staging buffer, two buffers in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import cdiv, next_power_of_2
from hotset.quant.triton import tl

if TYPE_CHECKING:
    import torch

# Pairs that are compared with all experts at a time.
BLOCK = 32
N_BUFFERS = 2
# Numbers of a wave's list begin at multiples of 16 bytes, or every wave would make variants of the kernel that reads it.
APART = 4
TYPES = {
    **dict.fromkeys(("picks", "order", "wave_ranks", "n_fetch"), "*i32"),
    **dict.fromkeys(("resident", "ahead", "address", "source", "target", "counts"), "*i64"),
    **dict.fromkeys(("n_pairs", "n_waves", "wave_size", "stride", "turn"), "i32"),
    **dict.fromkeys(("bank", "span_bytes", "staging_0", "staging_1"), "i64"),
}


# One program. E = experts, padded to a power of two. Numbers that differ from layer to layer do not make variants.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        "n_pairs",
        "n_waves",
        "wave_size",
        "stride",
        "turn",
        "bank",
        "span_bytes",
        "staging_0",
        "staging_1",
    ],
    do_not_specialize_on_alignment=["resident", "ahead", "address", "counts", "picks"],
)
def cut_kernel(
    picks: tl.tensor,  # int32 [n_pairs]
    resident: tl.tensor,  # int64 [N_EXPERTS], addresses, 0 where an expert has no slot
    ahead: tl.tensor,  # int64 [N_EXPERTS], addresses of those that were brought ahead of the picks, else 0
    order: tl.tensor,  # int32 [N_EXPERTS], rank -> expert
    wave_ranks: tl.tensor,  # int32 [n_waves + 2]: where the missing ones' waves begin, the last one's end
    address: tl.tensor,  # int64 [N_EXPERTS]
    source: tl.tensor,  # int64 [n_waves, stride], addresses in the bank
    target: tl.tensor,  # int64 [n_waves, stride]
    n_fetch: tl.tensor,  # int32 [n_waves, APART], the first of each
    counts: tl.tensor,  # int64 [2]: experts used in place and fetched, added to
    n_pairs: tl.tensor,
    n_waves: tl.tensor,
    wave_size: tl.tensor,
    stride: tl.tensor,
    turn: tl.tensor,  # the buffer of wave 0
    bank: tl.tensor,
    span_bytes: tl.tensor,
    staging_0: tl.tensor,
    staging_1: tl.tensor,
    N_EXPERTS: tl.constexpr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
    WAVES: tl.constexpr,  # n_waves + 1, padded to a power of two
    APART: tl.constexpr,
) -> None:
    expert = tl.arange(0, E)
    real = expert < N_EXPERTS
    picked = tl.zeros([E], tl.int32)
    first = 0
    while first < n_pairs:
        pair = first + tl.arange(0, BLOCK)
        pick = tl.load(picks + pair, mask=pair < n_pairs, other=-1)
        picked = tl.maximum(picked, tl.max((pick[:, None] == expert[None, :]).to(tl.int32), 0))
        first += BLOCK
    slot = tl.load(resident + expert, mask=real, other=0)
    brought = tl.load(ahead + expert, mask=real, other=0)
    own = tl.where(slot != 0, slot, brought)
    here = (real & (own != 0)).to(tl.int32)
    missing = (real & (own == 0)).to(tl.int32) * picked
    rest = real.to(tl.int32) - here - missing
    n_here, n_missing = tl.sum(here, 0), tl.sum(missing, 0)
    nth = tl.cumsum(missing, 0) - 1
    rank = tl.where(here > 0, tl.cumsum(here, 0) - 1, n_here + nth)
    rank = tl.where(rest > 0, n_here + n_missing + tl.cumsum(rest, 0) - 1, rank)
    tl.store(order + rank, expert, mask=real)

    wave, place = nth // wave_size, nth % wave_size
    buffer = tl.where((wave + turn) % 2 == 0, staging_0, staging_1)
    there = buffer + place.to(tl.int64) * span_bytes
    fetched = missing > 0
    tl.store(address + expert, tl.where(fetched, there, own), mask=real)
    tl.store(source + wave * stride + place, bank + expert.to(tl.int64) * span_bytes, mask=fetched)
    tl.store(target + wave * stride + place, there, mask=fetched)

    w = tl.arange(0, WAVES)
    tl.store(n_fetch + w * APART, tl.minimum(tl.maximum(n_missing - w * wave_size, 0), wave_size), mask=w < n_waves)
    begin = n_here + tl.minimum(w * wave_size, n_missing)
    # Experts that nobody chose close the last wave: they have no pairs.
    tl.store(wave_ranks + w, tl.where(w == n_waves, N_EXPERTS, begin), mask=w <= n_waves)
    in_place = tl.sum((slot != 0).to(tl.int32) * picked, 0)
    tl.store(counts, tl.load(counts) + in_place.to(tl.int64))
    fetched_in_all = n_missing + tl.sum((brought != 0).to(tl.int32), 0)
    tl.store(counts + 1, tl.load(counts + 1) + fetched_in_all.to(tl.int64))


@dataclass(frozen=True, eq=False)
class ChunkCut:
    """One layer's decision, on the device; layers overwrite each other's. `wave_ranks` [0] is always 0: the wave of those here."""

    order: torch.Tensor
    wave_ranks: torch.Tensor
    address: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    n_fetch: torch.Tensor

    @classmethod
    def empty(cls, n_experts: int, max_waves: int, wave_size: int, device: torch.device | str) -> ChunkCut:
        """Allocate for up to `max_waves` waves of `wave_size` missing experts."""
        import torch

        def numbers(shape: int | tuple[int, int], kind: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        padded = cdiv(wave_size, APART) * APART
        return cls(
            order=numbers(n_experts, torch.int32),
            wave_ranks=numbers(max_waves + 2, torch.int32),
            address=numbers(n_experts, torch.int64),
            source=numbers((max_waves, padded), torch.int64),
            target=numbers((max_waves, padded), torch.int64),
            n_fetch=numbers((max_waves, APART), torch.int32),
        )


@dataclass(frozen=True)
class Source:
    """Where a layer's experts come from and go to, as device addresses: expert 0 in the bank, and the two staging buffers."""

    bank: int
    span_bytes: int
    staging: tuple[int, int]
    wave_size: int


def cut_chunk(
    cut: ChunkCut,
    picks: torch.Tensor,
    resident: torch.Tensor,
    ahead: torch.Tensor,
    counts: torch.Tensor,
    source: Source,
    n_waves: int,
    turn: int,
) -> None:
    """Decide for picks int32 [m, k]; `resident` and `ahead` int64 [n_experts] have addresses or 0, not both. One launch, no wait.

    There must be room for all missing experts that can be picked: n_waves * wave_size of them. `counts` int64 [2] is added to.
    """
    n_experts = cut.order.numel()
    assert resident.numel() == ahead.numel() == n_experts
    assert n_waves <= len(cut.n_fetch)
    assert source.wave_size <= cut.source.shape[1]
    cut_kernel[(1,)](
        picks, resident, ahead, cut.order, cut.wave_ranks[1:], cut.address, cut.source, cut.target, cut.n_fetch, counts, picks.numel(),
        n_waves, source.wave_size, cut.source.shape[1], turn, source.bank, source.span_bytes, *source.staging, N_EXPERTS=n_experts,
        E=next_power_of_2(n_experts), BLOCK=BLOCK, WAVES=next_power_of_2(len(cut.n_fetch) + 1),
        APART=APART, num_warps=4,
    )  # fmt: skip


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    constants = {"N_EXPERTS": 160, "E": 256, "BLOCK": BLOCK, "WAVES": 16, "APART": APART}
    return [CompileCase("chunk cut", cut_kernel, TYPES, constants)]
