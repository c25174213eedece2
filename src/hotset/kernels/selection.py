"""The logits that a draw may need, in descending order, without sorting the whole vocabulary.

kept = {i : x_i >= t},  t = the k-th largest of the maxima of groups of 64;  without top-k: {i : x_i - max x >= log(min_p)}

The k groups with the largest maxima hold k logits of at least t, so that the k largest are among those kept, whatever their values. A
kept logit's place is the number of those before it: larger, or equal with a lower id. So it does not matter in which order they are
gathered. `reference` says what is kept; nothing bounds how many those are, few are only quicker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotset.kernels.aot import CompileCase
from hotset.kernels.sampling import BLOCK, N_FLOATS, N_INTS, less_largest, weight_of
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.config import SamplingParams

GROUP = 64
GROUPS_PER_PROGRAM = 16
RANK_BLOCK = 64
RANK_PROGRAMS = 128
# Weights at temperature 1 are exact to 2e-6: what min-p keeps is surely among those kept.
MARGIN = tl.constexpr(1e-3)
LEAST, NONE = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)
# Below it min-p may leave so much of a flat distribution that a sort is quicker.
LEAST_MIN_P = 0.02


def is_few(params: SamplingParams, n_groups: int) -> bool:
    """Say whether selection is quick: a random order of logits leaves about n_groups log(1 / (1 - k / n_groups)) of them."""
    if params.is_greedy:
        return True
    return 4 * params.top_k <= 3 * n_groups if params.top_k else params.min_p >= LEAST_MIN_P


@jit
def group_max_kernel(
    keys: tl.tensor,  # float32 [m, n_vocab], no NaN
    group_max: tl.tensor,  # float32 [m, n_groups]
    n_vocab: tl.tensor,
    n_groups: tl.tensor,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    i = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(keys + row * n_vocab + i, mask=i < n_vocab, other=float("-inf"))
    tl.store(group_max + row * n_groups + g, tl.max(x, 1), mask=g < n_groups)


@jit
def ordered_bits(x: tl.tensor) -> tl.tensor:
    """Map float32 without NaN to int32 of the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def kth_largest(order: tl.tensor, k: tl.tensor) -> tl.tensor:
    """Find the k-th largest of int32 `order`, bit by bit from the top; the least int32 where there are fewer than k."""
    found = tl.where(tl.sum((order >= 0).to(tl.int32), 0) >= k, 0, LEAST)
    for i in tl.static_range(31):
        higher = found | (1 << (30 - i))
        found = tl.where(tl.sum((order >= higher).to(tl.int32), 0) >= k, higher, found)
    return found


# One program per row. An idle one keeps nothing.
@jit
def bounds_kernel(
    group_max: tl.tensor,
    seqs: tl.tensor,  # int32 [m]
    row_mask: tl.tensor,  # int32 [m]
    floats: tl.tensor,  # float32 [n_seqs, N_FLOATS]
    ints: tl.tensor,  # int32 [n_seqs, N_INTS]
    largest: tl.tensor,  # float32 [m]
    least: tl.tensor,  # int32 [m], ordered bits of the least logit kept
    least_less: tl.tensor,  # float32 [m], the least that a kept logit less the largest may be
    count: tl.tensor,  # int32 [m], 0 from here on
    whole: tl.tensor,  # int64 [m], likewise
    n_groups: tl.tensor,
    PAD: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    seq = tl.load(seqs + row)
    g = tl.arange(0, PAD)
    x = tl.load(group_max + row.to(tl.int64) * n_groups + g, mask=g < n_groups, other=float("-inf"))
    k = tl.where(tl.load(ints + seq * N_INTS + 5) == 1, 1, tl.load(ints + seq * N_INTS))
    bits = tl.where(k > 0, kth_largest(ordered_bits(x), tl.maximum(k, 1)), LEAST)
    min_p = tl.load(floats + seq * N_FLOATS + 2)
    less = tl.where((k > 0) | (min_p == 0), float("-inf"), tl.log(tl.maximum(min_p, 1e-37)) - MARGIN)
    tl.store(largest + row, tl.max(x, 0))
    tl.store(least + row, tl.where(tl.load(row_mask + row) == 0, NONE, bits))
    tl.store(least_less + row, less)
    tl.store(count + row, 0)
    tl.store(whole + row, 0)


# Programs add their number of kept logits to the row's and so take their places: in any order.
@jit
def gather_kernel(
    keys: tl.tensor,
    seqs: tl.tensor,
    floats: tl.tensor,
    ints: tl.tensor,
    largest: tl.tensor,
    least: tl.tensor,
    least_less: tl.tensor,
    count: tl.tensor,
    whole: tl.tensor,  # the sum of all weights, for top-p without top-k
    kept: tl.tensor,  # float32 [m, n_vocab]
    kept_ids: tl.tensor,  # int32 [m, n_vocab]
    n_vocab: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    seq = tl.load(seqs + row)
    k = tl.load(ints + seq * N_INTS)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(keys + row * n_vocab + i, mask=i < n_vocab, other=float("-inf"))
    less = less_largest(x, tl.load(largest + row))
    order = ordered_bits(x)
    border = tl.load(least + row)
    keep = (x > float("-inf")) & (order >= border) & (less >= tl.load(least_less + row))
    # Of equals at the border no block has more than its first k among the k largest: a flat distribution stays cheap.
    equal = keep & (order == border)
    keep = keep & ((order > border) | (tl.cumsum(equal.to(tl.int32), 0) <= tl.maximum(k, 1)))
    n = tl.sum(keep.to(tl.int32), 0)
    if n > 0:
        place = tl.atomic_add(count + row, n, sem="relaxed") + tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(kept + row * n_vocab + place, x, mask=keep)
        tl.store(kept_ids + row * n_vocab + place, i, mask=keep)
    if (k == 0) & (tl.load(floats + seq * N_FLOATS + 1) < 1) & (border < NONE):
        tl.atomic_add(whole + row, tl.sum(weight_of(less), 0), sem="relaxed")


@jit
def rank_kernel(
    count: tl.tensor,
    kept: tl.tensor,
    kept_ids: tl.tensor,
    ordered: tl.tensor,  # float32 [m, n_vocab], descending
    ids: tl.tensor,  # int64 [m, n_vocab], of equal ones the lowest first
    n_vocab: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    n = tl.load(count + row)
    kept += row * n_vocab
    kept_ids += row * n_vocab
    start = tl.program_id(1) * BLOCK
    while start < n:
        i = start + tl.arange(0, BLOCK)
        x = tl.load(kept + i, mask=i < n, other=0.0)
        own = tl.load(kept_ids + i, mask=i < n, other=0)
        place = tl.zeros([BLOCK], tl.int32)
        block = 0
        while block < n:
            j = block + tl.arange(0, BLOCK)
            y = tl.load(kept + j, mask=j < n, other=float("-inf"))[None, :]
            other = tl.load(kept_ids + j, mask=j < n, other=0)[None, :]
            before = (y > x[:, None]) | ((y == x[:, None]) & (other < own[:, None]))
            place += tl.sum(before.to(tl.int32), 1)
            block += BLOCK
        tl.store(ordered + row * n_vocab + place, x, mask=i < n)
        tl.store(ids + row * n_vocab + place, own.to(tl.int64), mask=i < n)
        start += tl.num_programs(1) * BLOCK


def reference(logits: NDArray[np.float32], params: SamplingParams, group: int = GROUP) -> NDArray[np.int64]:
    """Name the ids kept of logits float32 [n_vocab] without NaN, in descending order, ties to the lowest id."""
    groups = np.pad(logits, (0, -len(logits) % group), constant_values=-np.inf).reshape(-1, group).max(1)
    k = 1 if params.is_greedy else params.top_k
    if k:
        least = np.sort(groups)[::-1][k - 1] if k <= len(groups) else -np.inf
        keep = logits >= least
    else:
        least_less = np.log(np.float32(params.min_p)) - MARGIN.value if params.min_p else -np.inf
        with np.errstate(invalid="ignore"):  # -inf less -inf
            keep = logits - logits.max() >= least_less
    order = np.argsort(-logits, kind="stable")
    return order[(keep & (logits > -np.inf))[order]]


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("seqs", "row_mask", "ints", "count", "least", "kept_ids"), "*i32")
    types |= dict.fromkeys(("keys", "group_max", "floats", "largest", "least_less", "kept", "ordered"), "*fp32")
    types |= dict.fromkeys(("whole", "ids"), "*i64") | dict.fromkeys(("n_vocab", "n_groups"), "i32")
    cases = [
        (group_max_kernel, {"GROUP": GROUP, "GROUPS": GROUPS_PER_PROGRAM}, 4),
        (bounds_kernel, {"PAD": 4096}, 8),
        (gather_kernel, {"BLOCK": BLOCK}, 4),
        (rank_kernel, {"BLOCK": RANK_BLOCK}, 4),
    ]
    return [
        CompileCase(kernel.__name__, kernel, {n: types[n] for n in kernel.arg_names if n in types}, constants, warps)
        for kernel, constants, warps in cases
    ]
