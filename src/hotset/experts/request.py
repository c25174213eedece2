"""One request of a layer, decided: the exact reference that the lookup kernel must match, hit for hit and victim for victim.

The functions from `update_scores` to `replay` are one source for plain Python and for Numba (`compiled_request` and so on).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.experts.policy import LFU, LRFU, LRU, PRODUCT, STATIC
from hotset.kernels.product import FLOOR, KEPT, LAST, LONGER, RECENT, SCORE
from hotset.kernels.rows import BEGINS, PADDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def update_scores(
    kind: int,
    scores: NDArray[Any],
    picked: NDArray[np.int32],
    n_real: int,
    begins: bool,
    step: int,
    decay: NDArray[np.float32],
) -> None:
    """Score every expert of a layer for one request; picked[e] real rows picked expert e, and `begins` says whether an answer begins.

    `scores` [n_scores, experts] are what the policy keeps of each, the one that decides in row 0.
    """
    score = scores[0]
    if kind == LRFU:
        fade = decay[n_real, 0]
        for e in range(score.size):
            score[e] = score[e] * fade  # stored, so rounded to float32, before the sum: never a fused multiply-add
            score[e] = score[e] + np.float32(picked[e])
    elif kind == PRODUCT:
        update_product(scores, picked, begins, decay[n_real])
    elif kind == LFU:
        for e in range(score.size):
            score[e] += picked[e]
    elif kind == LRU:
        for e in range(score.size):
            if picked[e] > 0:
                score[e] = step


def update_product(scores: NDArray[Any], picked: NDArray[np.int32], begins: bool, fade: NDArray[np.float32]) -> None:
    """See kernels/product.py; every product is stored, so rounded to float32, before the next operation."""
    score, recent, longer, last = scores[SCORE], scores[RECENT], scores[LONGER], scores[LAST]
    kept, floor = np.float32(KEPT), np.float32(FLOOR)
    for e in range(score.size):
        if begins:
            recent[e] = 0
            longer[e] = longer[e] * kept
        recent[e] = recent[e] * fade[0]
        recent[e] = recent[e] + np.float32(picked[e])
        longer[e] = longer[e] * fade[1]
        longer[e] = longer[e] + np.float32(picked[e])
        last[e] = 1 if picked[e] > 0 else last[e] * fade[2]
        score[e] = recent[e] * last[e]
        score[e] = score[e] * (longer[e] + floor)


def take_slot(
    kind: int, n_slots: int, score: NDArray[Any], picked: NDArray[np.int32], slot_of: NDArray[np.int32]
) -> int:
    """Give the lowest empty slot, else that of the lowest-scored expert that is not held (ties: the lowest index), else -1."""
    if kind == STATIC:
        return -1
    n_resident = 0
    victim = -1
    for e in range(score.size):
        if slot_of[e] >= 0:
            n_resident += 1
            if picked[e] == 0 and (victim < 0 or score[e] < score[victim]):
                victim = e
    if n_resident < n_slots:
        return n_resident  # slots fill from 0 and are never given up without a successor
    if victim < 0:
        return -1
    slot = int(slot_of[victim])
    slot_of[victim] = -1
    return slot


def count_picks(picks: NDArray[np.int32], row_mask: NDArray[np.int32], picked: NDArray[np.int32]) -> int:
    """Count into picked[e] the real rows that picked expert e (picks of a row are distinct); returns the number of real rows."""
    n_real = 0
    for row in range(picks.shape[0]):
        if row_mask[row] != PADDING:
            n_real += 1
            for pick in range(picks.shape[1]):
                picked[picks[row, pick]] += 1
    return n_real


def begins_answer(row_mask: NDArray[np.int32], step: int) -> bool:
    """Whether every real row begins an answer: a newcomer must not cost the others of a batch what they keep warm.

    Before the first step there was no answer: what a warm start gave stays.
    """
    for row in range(row_mask.size):
        if row_mask[row] != PADDING and row_mask[row] != BEGINS:
            return False
    return step > 1


def request(
    kind: int,
    n_slots: int,
    decay: NDArray[np.float32],
    picks: NDArray[np.int32],
    row_mask: NDArray[np.int32],
    step: NDArray[np.int32],
    scores: NDArray[Any],
    slot_of: NDArray[np.int32],
    location: NDArray[np.int32],
    fetch_expert: NDArray[np.int32],
    fetch_location: NDArray[np.int32],
    counters: NDArray[np.int64],
) -> int:
    """One request of a layer: update its state, say where every pick lies, list what to fetch; returns the length of that list.

    Rows where `row_mask` (see kernels/rows.py) is PADDING have no part in it. A location is a slot, n_slots + i for span i of the overflow area, or -1 for a pick of a padded row.
    """
    location[:, :] = -1
    picked = np.zeros(slot_of.size, np.int32)
    n_real = count_picks(picks, row_mask, picked)
    if n_real == 0:
        return 0
    step[0] += 1
    update_scores(kind, scores, picked, n_real, begins_answer(row_mask, step[0]), step[0], decay)
    score = scores[0]
    found = np.full(score.size, -1, np.int32)
    n_hits = n_fetch = n_overflow = 0
    for row in range(picks.shape[0]):
        if row_mask[row] == PADDING:
            continue
        for pick in range(picks.shape[1]):
            e = picks[row, pick]
            if found[e] < 0 and slot_of[e] >= 0:
                n_hits += 1
                found[e] = slot_of[e]
            elif found[e] < 0:
                slot = take_slot(kind, n_slots, score, picked, slot_of)
                if slot >= 0:
                    slot_of[e] = slot
                    found[e] = slot
                else:
                    found[e] = n_slots + n_overflow
                    n_overflow += 1
                fetch_expert[n_fetch] = e
                fetch_location[n_fetch] = found[e]
                n_fetch += 1
            location[row, pick] = found[e]
    counters[0] += n_hits
    counters[1] += n_fetch
    counters[2] += n_overflow
    counters[3] += 1
    return n_fetch


def kept_request(
    ring: NDArray[np.int16],
    weight_ring: NDArray[np.float32],
    weights: NDArray[np.float32],
    kind: int,
    n_slots: int,
    decay: NDArray[np.float32],
    picks: NDArray[np.int32],
    row_mask: NDArray[np.int32],
    step: NDArray[np.int32],
    scores: NDArray[Any],
    slot_of: NDArray[np.int32],
    location: NDArray[np.int32],
    fetch_expert: NDArray[np.int32],
    fetch_location: NDArray[np.int32],
    counters: NDArray[np.int64],
) -> int:
    """`request`, whose picks (-1 in padded rows) and weights go to the place of its step in a layer's rings [steps, rows, k]; no weights where there are no rows of them."""
    before = step[0]
    n_fetch = request(
        kind, n_slots, decay, picks, row_mask, step, scores, slot_of, location, fetch_expert, fetch_location, counters
    )
    if step[0] == before:
        return n_fetch
    at = before % ring.shape[0]
    ring[at] = -1
    for row in range(picks.shape[0]):
        if row_mask[row] != PADDING:
            for pick in range(picks.shape[1]):
                ring[at, row, pick] = picks[row, pick]
                if weights.shape[0] > 0:
                    weight_ring[at, row, pick] = weights[row, pick]
    return n_fetch


def replay(
    kind: int,
    n_slots: int,
    decay: NDArray[np.float32],
    experts: NDArray[np.int32],
    tokens: NDArray[np.int64],
    marks: NDArray[np.int32],
    group: NDArray[np.uint8],
    scores: NDArray[Any],
    slot_of: NDArray[np.int32],
    counters: NDArray[np.int64],
) -> None:
    """All requests of one layer in turn: row r of request t is token i = tokens[t, r], with the picks experts[i] and marks[i] (REAL or BEGINS).

    It is padding where that is -1. Request t is counted in counters[group[t]].
    """
    rows = tokens.shape[1]
    k = experts.shape[1]
    picks = np.zeros((rows, k), np.int32)
    row_mask = np.zeros(rows, np.int32)
    step = np.zeros(1, np.int32)
    location = np.zeros((rows, k), np.int32)
    fetch_expert = np.zeros(rows * k, np.int32)
    fetch_location = np.zeros(rows * k, np.int32)
    for t in range(tokens.shape[0]):
        for row in range(rows):
            i = tokens[t, row]
            row_mask[row] = PADDING if i < 0 else marks[i]
            if i >= 0:
                picks[row] = experts[i]
        at = counters[group[t]]
        request(
            kind, n_slots, decay, picks, row_mask, step, scores, slot_of, location, fetch_expert, fetch_location, at
        )


@functools.cache
def _compiler() -> Callable[[Any], Any]:
    # Numba is heavy to import and plain use needs none of it; registered functions stay plain for Python callers.
    from numba.extending import register_jitable

    from hotset.host.compile import compiled

    for part in (update_product, update_scores, take_slot, count_picks, begins_answer, request):
        register_jitable(part)
    return compiled()


@functools.cache
def compiled_request() -> Callable[..., int]:
    """`request` compiled by Numba."""
    return _compiler()(request)  # type: ignore[no-any-return]


@functools.cache
def compiled_kept_request() -> Callable[..., int]:
    """`kept_request` compiled by Numba."""
    return _compiler()(kept_request)  # type: ignore[no-any-return]


@functools.cache
def compiled_replay() -> Callable[..., None]:
    """`replay` compiled by Numba."""
    return _compiler()(replay)  # type: ignore[no-any-return]
