"""Draw the next token of every row on the device, and prepare the next step.

token = argmax(logits), or the first whose running sum of weights exceeds u times the whole, after mask, bias, penalties and cut-offs

`engine/sampling.py` is the reference, to the last token: all that is float32 here is rounded after every step as there, weights
and their sums are integers (weights.py), so that neither block sizes nor the order of sums count. What a sequence needs (its
parameters, its last tokens, where it stands) lies in device buffers, so that a graph can replay the step.
"""

from __future__ import annotations

from typing import Any

from hotset.config import MAX_LOGIT_BIAS, MAX_RECENT
from hotset.kernels.aot import CompileCase
from hotset.kernels.weights import COEFFICIENTS, LOG2_E, LOWEST, WEIGHT_BITS
from hotset.quant.triton import jit, tl

# A sequence's row of the two parameter tables.
FLOATS = ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")
INTS = ("top_k", "repeat_last_n", "seed_low", "seed_high", "n_bias", "greedy", "masked")
N_FLOATS = tl.constexpr(len(FLOATS))
N_INTS = tl.constexpr(len(INTS))
LARGEST = tl.constexpr(3.4028234663852886e38)
RING = tl.constexpr(MAX_RECENT)
BIAS = tl.constexpr(MAX_LOGIT_BIAS)
BITS = tl.constexpr(WEIGHT_BITS)
LARGEST_WEIGHT = tl.constexpr(2.0**WEIGHT_BITS)
LOG2E = tl.constexpr(LOG2_E)
LOW = tl.constexpr(LOWEST)
C0, C1, C2, C3, C4, C5 = (tl.constexpr(c) for c in COEFFICIENTS)
PENALTY_BLOCK = 64
PENALTY_PROGRAMS = 16
BLOCK = 1024
DRAW_BLOCK = 1024
# Rounded after every operation, as NumPy does.
EXACT = {"enable_fp_fusion": False}


@jit
def weight_of(x: tl.tensor) -> tl.tensor:
    """Give floor(2^32 exp(x)) of float32 x <= 0 as int64; `weights.weights` is the reference."""
    y = tl.maximum(x * LOG2E, LOW)
    k = tl.floor(y)
    f = y - k
    power = C5 * f + C4
    power = power * f + C3
    power = power * f + C2
    power = power * f + C1
    power = power * f + C0
    power = power * f + 1.0
    scale = ((k.to(tl.int32) + (127 + BITS)) << 23).to(tl.float32, bitcast=True)
    return (power * scale).to(tl.int64)


@jit
def less_largest(x: tl.tensor, largest: tl.tensor) -> tl.tensor:
    return tl.where(x == largest, 0.0, x - largest)


# A copy that orders well: NaN and what the mask forbids as -inf, one zero, no +inf. Penalties then change the copy, not the model's
# logits.
@jit
def copy_kernel(
    logits: tl.tensor,  # float32 [m, stride]
    keys: tl.tensor,  # float32 [m, n_vocab]
    seqs: tl.tensor,  # int32 [m]
    ints: tl.tensor,  # int32 [n_seqs, N_INTS]
    masks: tl.tensor,  # int32 [n_seqs, n_words], as in token_mask.py
    stride: tl.tensor,
    n_vocab: tl.tensor,
    n_words: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * stride + i, mask=i < n_vocab)
    x = tl.where(x == x, x, float("-inf"))  # noqa: PLR0124
    seq = tl.load(seqs + row)
    if tl.load(ints + seq * N_INTS + 6) == 1:
        word = tl.load(masks + seq * n_words + i // 32, mask=i < n_vocab, other=0)
        x = tl.where((word >> (i % 32)) & 1 == 1, x, float("-inf"))
    x = tl.where(x == 0, 0.0, tl.where(x > LARGEST, LARGEST, x))
    tl.store(keys + row * n_vocab + i, x, mask=i < n_vocab)


@jit
def bias_kernel(
    keys: tl.tensor,
    seqs: tl.tensor,  # int32 [m]
    ints: tl.tensor,  # int32 [n_seqs, N_INTS]
    bias_ids: tl.tensor,  # int32 [n_seqs, BIAS], distinct
    bias_values: tl.tensor,  # float32 [n_seqs, BIAS]
    n_vocab: tl.tensor,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    seq = tl.load(seqs + row)
    n = tl.load(ints + seq * N_INTS + 4)
    if n == 0:
        return
    i = tl.arange(0, BIAS)
    at = keys + row * n_vocab + tl.load(bias_ids + seq * BIAS + i, mask=i < n, other=0)
    x = tl.load(at, mask=i < n) + tl.load(bias_values + seq * BIAS + i, mask=i < n)
    tl.store(at, x, mask=i < n)


# Programs share the window, block by block: each counts its tokens in all of it and punishes those that it sees first.
@jit
def penalty_kernel(
    keys: tl.tensor,
    positions: tl.tensor,  # int32 [m]
    seqs: tl.tensor,
    floats: tl.tensor,  # float32 [n_seqs, N_FLOATS]
    ints: tl.tensor,
    recent: tl.tensor,  # int32 [n_seqs, RING]: the token at position p lies at p % RING, -1 where there is none
    n_vocab: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    seq = tl.load(seqs + row)
    repeat = tl.load(floats + seq * N_FLOATS + 3)
    presence = tl.load(floats + seq * N_FLOATS + 4)
    frequency = tl.load(floats + seq * N_FLOATS + 5)
    if (repeat == 1) & (presence == 0) & (frequency == 0):
        return
    position = tl.load(positions + row)
    n = tl.minimum(tl.load(ints + seq * N_INTS + 1), position + 1)
    start = tl.program_id(1) * BLOCK
    while start < n:
        age = start + tl.arange(0, BLOCK)  # 0 is the newest
        token = token_of_age(recent + seq * RING, position, age, n)
        count, newer = occurrences(recent + seq * RING, position, token, age, n, BLOCK)
        first = (token >= 0) & (token < n_vocab) & (newer == 0)
        at = keys + row * n_vocab + token
        x = tl.load(at, mask=first, other=0.0)
        x = tl.where(x > 0, tl.div_rn(x, repeat + tl.zeros_like(x)), x * repeat)
        x -= count.to(tl.float32) * frequency + presence
        tl.store(at, tl.where(x == 0, 0.0, x), mask=first)
        start += tl.num_programs(1) * BLOCK


@jit
def token_of_age(ring: tl.tensor, position: tl.tensor, age: tl.tensor, n: tl.tensor) -> tl.tensor:
    return tl.load(ring + (position - age + RING) % RING, mask=age < n, other=-1)


@jit
def occurrences(
    ring: tl.tensor, position: tl.tensor, token: tl.tensor, age: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """Count each token [BLOCK] in the window of n, and among the newer tokens alone."""
    count = tl.zeros([BLOCK], tl.int32)
    newer = tl.zeros([BLOCK], tl.int32)
    block = 0
    while block < n:
        other_age = block + tl.arange(0, BLOCK)
        other = token_of_age(ring, position, other_age, n)
        same = (token[:, None] == other[None, :]).to(tl.int32)
        count += tl.sum(same, 1)
        newer += tl.sum(tl.where(other_age[None, :] < age[:, None], same, 0), 1)
        block += BLOCK
    return count, newer


# The token joins the sequence's last ones and becomes the row's input of the next step.
@jit
def accept(
    token: tl.tensor,
    largest: tl.tensor,
    row: tl.tensor,
    seq: tl.tensor,
    tokens: tl.tensor,
    positions: tl.tensor,
    row_mask: tl.tensor,
    recent: tl.tensor,
    end_ids: tl.tensor,
    done: tl.tensor,
    N_END: tl.constexpr,
) -> None:
    position = tl.load(positions + row) + 1
    is_end = tl.max((tl.load(end_ids + seq * N_END + tl.arange(0, N_END)) == token).to(tl.int32), 0)
    state = tl.maximum(tl.load(done + seq), tl.where(largest == float("-inf"), 2, is_end))  # sampler.NO_TOKEN, ENDED
    tl.debug_barrier()  # every warp has read the position before one of them writes it
    tl.store(tokens + row, token)
    tl.store(positions + row, position)
    tl.store(recent + seq * RING + position % RING, token)
    tl.store(done + seq, state)
    # REAL, or PADDING: a sequence that has ended computes no further step.
    tl.store(row_mask + row, (state == 0).to(tl.int32))


@jit
def block_max_kernel(
    keys: tl.tensor,
    block_max: tl.tensor,  # float32 [m, n_blocks]
    block_id: tl.tensor,  # int32 [m, n_blocks]
    n_vocab: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(keys + row * n_vocab + i, mask=i < n_vocab, other=float("-inf"))
    largest = tl.max(x, 0)
    at = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(block_max + at, largest)
    tl.store(block_id + at, tl.min(tl.where(x == largest, i, n_vocab - 1), 0))


@jit
def greedy_kernel(
    block_max: tl.tensor,
    block_id: tl.tensor,
    tokens: tl.tensor,  # int32 [m]
    positions: tl.tensor,
    seqs: tl.tensor,
    row_mask: tl.tensor,
    recent: tl.tensor,
    end_ids: tl.tensor,  # int32 [n_seqs, N_END], -1 is none
    done: tl.tensor,  # int32 [n_seqs]
    n_blocks: tl.tensor,
    BLOCKS_PAD: tl.constexpr,
    N_END: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    if tl.load(row_mask + row) == 0:
        return
    b = tl.arange(0, BLOCKS_PAD)
    at = row * n_blocks + b
    x = tl.load(block_max + at, mask=b < n_blocks, other=float("-inf"))
    i = tl.load(block_id + at, mask=b < n_blocks, other=2147483647)
    largest = tl.max(x, 0)
    token = tl.min(tl.where(x == largest, i, 2147483647), 0)
    accept(token, largest, row, tl.load(seqs + row), tokens, positions, row_mask, recent, end_ids, done, N_END)


# One program per row over its logits in descending order, all of them or those that selection.py keeps. Cut-offs leave a prefix: `n`
# shrinks from top-k to top-p to min-p. A row without any logit draws token 0, and its sequence is told to have none.
@jit
def draw_kernel(
    ordered: tl.tensor,  # float32 [m, n_vocab], descending
    ids: tl.tensor,  # int64 [m, n_vocab], of equal ones the lowest first
    count: tl.tensor,  # int32 [m], how many of them there are, or None: n_vocab
    whole: tl.tensor,  # int64 [m], the sum of all weights where top-p needs it without top-k, or None
    tokens: tl.tensor,
    positions: tl.tensor,
    seqs: tl.tensor,
    row_mask: tl.tensor,
    floats: tl.tensor,
    ints: tl.tensor,
    recent: tl.tensor,
    end_ids: tl.tensor,
    done: tl.tensor,
    n_vocab: tl.tensor,
    BLOCK: tl.constexpr,
    N_END: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    if tl.load(row_mask + row) == 0:
        return
    seq = tl.load(seqs + row)
    ordered += row * n_vocab
    n = n_vocab
    if count is not None:
        n = tl.load(count + row)
        whole += row
    largest = tl.load(ordered, mask=n > 0, other=float("-inf"))
    index = 0
    if tl.load(ints + seq * N_INTS + 5) == 0:
        index = drawn(
            ordered, largest, floats + seq * N_FLOATS, ints + seq * N_INTS, tl.load(positions + row), n, whole, BLOCK
        )
    token = tl.load(ids + row * n_vocab + index, mask=n > 0, other=0).to(tl.int32)
    accept(token, largest, row, seq, tokens, positions, row_mask, recent, end_ids, done, N_END)


@jit
def drawn(
    ordered: tl.tensor,
    largest: tl.tensor,
    floats: tl.tensor,
    ints: tl.tensor,
    position: tl.tensor,
    n_ordered: tl.tensor,
    whole: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    k = tl.load(ints)
    n = tl.where(k > 0, tl.minimum(k, n_ordered), n_ordered)
    top_p = tl.load(floats + 1)
    if top_p < 1:
        all_weights = weight_sum(ordered, largest, 1.0, n, BLOCK)
        if whole is not None:
            all_weights = tl.where(k > 0, all_weights, tl.load(whole))
        threshold = top_p.to(tl.float64) * all_weights.to(tl.float64)
        n = tl.minimum(n, 1 + count_reached(ordered, largest, 1.0, n, threshold, False, BLOCK))
    n = count_likely(ordered, largest, n, tl.load(floats + 2), BLOCK)
    temperature = tl.load(floats)
    total = weight_sum(ordered, largest, temperature, n, BLOCK)
    u = uniform(tl.load(ints + 2), tl.load(ints + 3), position + 1)
    target = tl.floor(u.to(tl.float64) * total.to(tl.float64))
    return count_reached(ordered, largest, temperature, n, target, True, BLOCK)


@jit
def block_weights(
    ordered: tl.tensor, largest: tl.tensor, temperature: tl.tensor, i: tl.tensor, n: tl.tensor
) -> tl.tensor:
    x = less_largest(tl.load(ordered + i, mask=i < n, other=float("-inf")), largest)
    return tl.where(i < n, weight_of(tl.div_rn(x, temperature + tl.zeros_like(x))), 0)


@jit
def weight_sum(
    ordered: tl.tensor, largest: tl.tensor, temperature: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """Sum the first n weights: int64."""
    total = tl.zeros([BLOCK], tl.int64)
    start = 0
    while start < n:
        total += block_weights(ordered, largest, temperature, start + tl.arange(0, BLOCK), n)
        start += BLOCK
    return tl.sum(total, 0)


@jit
def count_reached(
    ordered: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    n: tl.tensor,
    limit: tl.tensor,
    UP_TO: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Count how many of the first n running sums are below `limit` (UP_TO: at most it): int32."""
    before = tl.sum(tl.zeros([BLOCK], tl.int64), 0)
    count = tl.zeros([BLOCK], tl.int32)
    start = 0
    while start < n:
        i = start + tl.arange(0, BLOCK)
        w = block_weights(ordered, largest, temperature, i, n)
        reached = (before + tl.cumsum(w, 0)).to(tl.float64)
        below = reached <= limit if UP_TO else reached < limit
        count += ((i < n) & below).to(tl.int32)
        before += tl.sum(w, 0)
        start += BLOCK
    return tl.sum(count, 0)


@jit
def count_likely(
    ordered: tl.tensor, largest: tl.tensor, n: tl.tensor, min_p: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """Count the first n whose weight is at least min_p of the largest's."""
    limit = min_p.to(tl.float64) * LARGEST_WEIGHT
    count = tl.zeros([BLOCK], tl.int32)
    start = 0
    while start < n:
        i = start + tl.arange(0, BLOCK)
        w = block_weights(ordered, largest, 1.0, i, n)
        count += ((i < n) & (w.to(tl.float64) >= limit)).to(tl.int32)
        start += BLOCK
    return tl.sum(count, 0)


@jit
def uniform(seed_low: tl.tensor, seed_high: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Draw a float32 in [0, 1) as `engine/philox.py` does, with draw index 0; positions stay below 2^31."""
    seed = (seed_high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | seed_low.to(tl.uint32, bitcast=True).to(
        tl.uint64
    )
    zero = position * 0
    word, _, _, _ = tl.philox(seed, position, zero, zero, zero)
    return (word >> 8).to(tl.float32) * (1.0 / (1 << 24))


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("ints", "recent", "end_ids", "done", "bias_ids", "masks", "count"), "*i32")
    types |= dict.fromkeys(("floats", "bias_values", "keys", "ordered", "block_max", "logits"), "*fp32")
    types |= dict.fromkeys(("tokens", "positions", "seqs", "row_mask", "block_id"), "*i32") | dict.fromkeys(
        ("ids", "whole"), "*i64"
    )
    types |= dict.fromkeys(("stride", "n_vocab", "n_words", "n_blocks"), "i32")
    every: dict[str, int | None] = {"count": None, "whole": None}
    cases: list[tuple[Any, dict[str, int | None], int]] = [
        (copy_kernel, {"BLOCK": BLOCK}, 4),
        (bias_kernel, {}, 4),
        (penalty_kernel, {"BLOCK": PENALTY_BLOCK}, 4),
        (block_max_kernel, {"BLOCK": BLOCK}, 4),
        (greedy_kernel, {"BLOCKS_PAD": 256, "N_END": 4}, 4),
        (draw_kernel, {"BLOCK": DRAW_BLOCK, "N_END": 4}, 8),
        (draw_kernel, {"BLOCK": DRAW_BLOCK, "N_END": 4, **every}, 8),
    ]
    return [
        CompileCase(
            kernel.__name__,
            kernel,
            {n: types[n] for n in kernel.arg_names if n in types and n not in constants},
            constants,
            warps,
        )
        for kernel, constants, warps in cases
    ]
