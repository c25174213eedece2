"""Which experts are on the GPU: one request of a layer, decided on the device by one program.

address[j] = pool + slot * span of a resident expert, else the slot or the span of the overflow area that the fetch will fill;
0 for a pick of a padded row

`experts/request.py` is the reference, to the last bit of every score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from hotset.kernels import product, rows
from hotset.kernels.aot import CompileCase
from hotset.kernels.clock import close_fetch
from hotset.kernels.counts import next_power_of_2
from hotset.kernels.guess import MISSED, note_call, note_picks

if TYPE_CHECKING:
    import torch

# A layer's row of the address table: resizing or moving its slots is an edit of the row.
TABLE_COLUMNS = ("bank", "pool", "overflow", "span_bytes", "n_slots")
WIDTH = tl.constexpr(len(TABLE_COLUMNS))
NO_VICTIM = tl.constexpr(2**63 - 1)
PADDING, REAL = tl.constexpr(rows.PADDING), tl.constexpr(rows.REAL)
RECENT, LONGER, LAST = tl.constexpr(product.RECENT), tl.constexpr(product.LONGER), tl.constexpr(product.LAST)
N_FADES = tl.constexpr(len(product.HALF_LIVES))
MISS = tl.constexpr(MISSED)
KEPT, FLOOR = tl.constexpr(product.KEPT), tl.constexpr(product.FLOOR)


# N = rows * k picks, E = experts; *_PAD = the next power of two.
# `layer` counts up, and picks and row_mask may be any part of a larger buffer: specialising would compile variants.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["layer", "n_layers", "max_picks", "ring_steps"],
    do_not_specialize_on_alignment=["picks", "row_mask"],
)
def lookup_kernel(
    picks: tl.tensor,  # int32 [N]
    row_mask: tl.tensor,  # int32 [rows], see rows.py
    table: tl.tensor,  # int64 [layers, 5]
    decay: tl.tensor,  # float32 [max_rows + 1, half-lives], d^n
    step: tl.tensor,  # int32 [layers]
    scores: tl.tensor,  # int32 [layers, N_SCORES, E_PAD], the bits of a float32 for lrfu and product; never negative
    slot_of: tl.tensor,  # int32 [layers, E_PAD], -1 where not resident
    counters: tl.tensor,  # int64 [layers, 4]
    address: tl.tensor,  # int64 [3, max_picks]: of every pick, of hits (else 0), of misses (else 0)
    fetch_source: tl.tensor,  # int64 [max_picks]
    fetch_target: tl.tensor,  # int64 [max_picks]
    n_fetch: tl.tensor,  # int32 [1]
    ring: tl.tensor,  # int16 [ring_steps, layers, max_picks], page-locked
    times: tl.tensor,  # int64 [layers, 3], see clock.py
    calls: tl.tensor,  # int32 [layers], lookups begun, see guess.note_call
    picked_out: tl.tensor,  # int32 [layers, max_picks], see guess.note_picks
    layer: tl.tensor,
    n_layers: tl.tensor,
    max_picks: tl.tensor,
    ring_steps: tl.tensor,
    POLICY: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    N_PAD: tl.constexpr,
    E_PAD: tl.constexpr,
    N_SCORES: tl.constexpr,
    RING_PAD: tl.constexpr,
    TIMED: tl.constexpr,
    PREFETCH: tl.constexpr,  # whether anything reads `calls` and `picked_out`
) -> None:
    note_call(calls + layer, PREFETCH)
    close_fetch(times + layer * 3, TIMED)
    row = table + layer * WIDTH
    bank = tl.load(row)
    pool = tl.load(row + 1)
    overflow = tl.load(row + 2)
    span = tl.load(row + 3)
    n_slots = tl.load(row + 4).to(tl.int32)
    j = tl.arange(0, N_PAD)
    e = tl.arange(0, E_PAD)
    pick = tl.load(picks + j, mask=j < N, other=0)  # [N_PAD]
    mark = tl.load(row_mask + j // K, mask=j < N, other=PADDING)
    real = mark != PADDING
    now = tl.load(step + layer)
    score = scores + layer * (N_SCORES * E_PAD) + e
    bits = tl.load(score)  # [E_PAD]
    slots = tl.load(slot_of + layer * E_PAD + e)
    slot = tl.load(slot_of + layer * E_PAD + pick)  # [N_PAD]
    count = tl.load(counters + layer * 4 + tl.arange(0, 4))

    picked = tl.sum(((pick[:, None] == e[None, :]) & real[:, None]).to(tl.int32), 0)  # [E_PAD]
    n_real = tl.sum(real.to(tl.int32), 0) // K
    begins = (now > 0) & (n_real > 0) & (tl.sum((mark == REAL).to(tl.int32), 0) == 0)
    now += (n_real > 0).to(tl.int32)
    if POLICY == "lrfu":
        faded = bits.to(tl.float32, bitcast=True) * tl.load(decay + n_real)
        bits = (faded + picked.to(tl.float32)).to(tl.int32, bitcast=True)
    elif POLICY == "product":
        uses = picked.to(tl.float32)
        fade = decay + n_real * N_FADES
        recent = tl.load(score + RECENT * E_PAD).to(tl.float32, bitcast=True)
        longer = tl.load(score + LONGER * E_PAD).to(tl.float32, bitcast=True)
        last = tl.load(score + LAST * E_PAD).to(tl.float32, bitcast=True)
        recent = tl.where(begins, 0.0, recent) * tl.load(fade) + uses
        longer = longer * tl.where(begins, KEPT, 1.0) * tl.load(fade + LONGER - RECENT) + uses
        last = tl.where(picked > 0, 1.0, last * tl.load(fade + LAST - RECENT))
        bits = (recent * last * (longer + FLOOR)).to(tl.int32, bitcast=True)
    elif POLICY == "lfu":
        bits += picked
    elif POLICY == "lru":
        bits = tl.where(picked > 0, now, bits)

    # The distinct experts in order of first appearance: pick i (down) is the same as pick j (across) and came before.
    same = (pick[:, None] == pick[None, :]) & real[:, None] & real[None, :]
    earlier = same & (j[:, None] < j[None, :])
    first = real & (tl.sum(earlier.to(tl.int32), 0) == 0)
    missing = first & (slot < 0)
    order = tl.cumsum(missing.to(tl.int32), 0) - 1
    n_missing = tl.sum(missing.to(tl.int32), 0)
    n_hits = tl.sum(first.to(tl.int32), 0) - n_missing

    # Slots fill from 0, so the lowest empty one is the number of residents. Scores and the held experts stand from here
    # on, so the victims are the smallest keys one after the other. Of a key: score, then expert, then its slot; non-negative
    # float32 order as their bits do.
    n_resident = tl.sum((slots >= 0).to(tl.int32), 0)
    loose = (slots >= 0) & (picked == 0)
    key = tl.where(loose, (bits.to(tl.int64) << 32) | (e << 16).to(tl.int64) | slots.to(tl.int64), NO_VICTIM)
    n_empty = 0
    n_victims = 0
    if POLICY != "static":
        n_empty = tl.minimum(n_slots - n_resident, n_missing)
        n_victims = tl.minimum(tl.sum(loose.to(tl.int32), 0), n_missing - n_empty)
    n_placed = n_empty + n_victims
    place = tl.where(order < n_empty, n_resident + order, n_slots + order - n_placed)
    evicted = e < 0
    n_found = 0
    while n_found < n_victims:  # `for` over a device number fails in the interpreter with NumPy 2.4
        victim = tl.min(key, 0)
        place = tl.where(order == n_empty + n_found, (victim & 0xFFFF).to(tl.int32), place)
        evicted = evicted | (key == victim)
        key = tl.where(key == victim, NO_VICTIM, key)
        n_found += 1
    place = tl.where(missing, place, slot)
    target = tl.where(place < n_slots, pool + place * span, overflow + (place - n_slots) * span)
    # A pick takes the address of the first that is the same; a padded one is the same as none.
    chosen = tl.sum(tl.where(same & first[:, None], target[:, None], 0), 0)

    tl.debug_barrier()  # every warp has read the state before one of them writes it
    tl.store(step + layer, now)
    tl.store(score, bits)
    if POLICY == "product":
        tl.store(score + RECENT * E_PAD, recent.to(tl.int32, bitcast=True))
        tl.store(score + LONGER * E_PAD, longer.to(tl.int32, bitcast=True))
        tl.store(score + LAST * E_PAD, last.to(tl.int32, bitcast=True))
    tl.store(slot_of + layer * E_PAD + e, -1, mask=evicted)
    tl.store(slot_of + layer * E_PAD + pick, place, mask=missing & (order < n_placed))
    tl.store(address + j, chosen, mask=j < N)
    tl.store(address + max_picks + j, tl.where(slot >= 0, chosen, 0), mask=j < N)
    tl.store(address + 2 * max_picks + j, tl.where(slot < 0, chosen, 0), mask=j < N)
    tl.store(fetch_source + order, bank + pick * span, mask=missing)
    tl.store(fetch_target + order, target, mask=missing)
    tl.store(n_fetch, n_missing)
    note_picks(picked_out + layer * max_picks, pick, real, slot < 0, N, N_PAD, PREFETCH, MISS)
    c = tl.arange(0, 4)
    rest = tl.where(c == 2, n_missing - n_placed, (n_real > 0).to(tl.int32))
    count += tl.where(c == 0, n_hits, tl.where(c == 1, n_missing, rest))
    tl.store(counters + layer * 4 + c, count)
    if RING_PAD > 0:
        r = tl.arange(0, RING_PAD)
        noted = tl.load(row_mask + r // K, mask=r < N, other=PADDING) != PADDING
        value = tl.where(noted, tl.load(picks + r, mask=r < N, other=-1), -1)
        entry = ((now - 1) % ring_steps).to(tl.int64) * n_layers + layer
        tl.store(ring + entry * max_picks + r, value.to(tl.int16), mask=(r < max_picks) & (n_real > 0))


@dataclass(frozen=True)
class LookupBuffers:
    """What the lookup of every layer reads and writes; shapes as in the kernel's list of arguments."""

    table: torch.Tensor
    decay: torch.Tensor
    step: torch.Tensor
    scores: torch.Tensor
    slot_of: torch.Tensor
    counters: torch.Tensor
    address: torch.Tensor
    fetch_source: torch.Tensor
    fetch_target: torch.Tensor
    n_fetch: torch.Tensor
    ring: torch.Tensor
    times: torch.Tensor
    calls: torch.Tensor
    picked: torch.Tensor
    timed: bool
    prefetch: bool


def lookup(buffers: LookupBuffers, policy: str, layer: int, picks: torch.Tensor, row_mask: torch.Tensor) -> None:
    """Decide one request of a layer: picks int32 [rows, k] and row_mask int32 [rows], both contiguous on the device."""
    n_layers, n_scores, n_experts_padded = buffers.scores.shape
    n, max_picks, ring_steps = picks.numel(), buffers.address.shape[1], len(buffers.ring)
    assert picks.is_contiguous()
    assert row_mask.is_contiguous()
    assert row_mask.numel() == len(picks)
    assert n <= max_picks
    assert buffers.address.is_contiguous()
    n_padded = next_power_of_2(n)
    lookup_kernel[(1,)](
        picks,
        row_mask,
        buffers.table,
        buffers.decay,
        buffers.step,
        buffers.scores,
        buffers.slot_of,
        buffers.counters,
        buffers.address,
        buffers.fetch_source,
        buffers.fetch_target,
        buffers.n_fetch,
        buffers.ring,
        buffers.times,
        buffers.calls,
        buffers.picked,
        layer,
        n_layers,
        max_picks,
        ring_steps,
        POLICY=policy,
        N=n,
        K=picks.shape[1],
        N_PAD=n_padded,
        E_PAD=n_experts_padded,
        N_SCORES=n_scores,
        RING_PAD=next_power_of_2(max_picks) if ring_steps else 0,
        TIMED=buffers.timed,
        PREFETCH=buffers.prefetch,
        num_warps=_warps(n_padded, n_experts_padded),
        enable_fp_fusion=False,  # the reference multiplies, rounds, then adds
    )


def _warps(n_padded: int, n_experts_padded: int) -> int:
    # One warp needs no barriers and holds a decode step of most models; larger tiles would spill its registers.
    return 1 if n_padded <= 16 and n_experts_padded <= 256 else 4


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: every policy, few and many picks and experts, with and without a ring."""
    tensors = dict.fromkeys(("table", "counters", "times", "address", "fetch_source", "fetch_target"), "*i64")
    tensors |= dict.fromkeys(
        ("picks", "row_mask", "step", "scores", "slot_of", "n_fetch", "calls", "picked_out"), "*i32"
    )
    tensors |= {"decay": "*fp32", "ring": "*i16"}
    numbers = dict.fromkeys(("layer", "n_layers", "max_picks", "ring_steps"), "i32")
    shapes = [
        ("lrfu", 1, 8, 128, 8),
        ("product", 1, 8, 128, 8),
        ("product", 8, 8, 128, 64),
        ("lru", 3, 6, 512, 32),
        ("lfu", 8, 8, 128, 64),
        ("static", 1, 1, 64, 0),
    ]
    return [
        CompileCase(
            name=f"lookup-{policy}-{rows}x{k}-of-{padded}",
            kernel=lookup_kernel,
            types=tensors | numbers,
            constants={
                "POLICY": policy,
                "N": rows * k,
                "K": k,
                "N_PAD": next_power_of_2(rows * k),
                "E_PAD": padded,
                "N_SCORES": product.N_SCORES if policy == "product" else 1,
                "RING_PAD": ring,
                "TIMED": False,
                "PREFETCH": policy == "lrfu",
            },
            num_warps=_warps(next_power_of_2(rows * k), padded),
        )
        for policy, rows, k, padded, ring in shapes
    ]
