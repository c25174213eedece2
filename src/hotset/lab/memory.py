"""What a policy keeps about the experts of a pool, as flat arrays that compiled and plain code share, and the lists in it.

The functions are plain Python for Python callers and compiled where compiled code calls them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Lists that a policy may keep; a list's sentinel is member n + its number.
N_LISTS = 4
# Numbers of every expert that a policy may keep beside its score.
N_OWN = 3
NOWHERE = -1
# Places in `number`.
CLOCK, N_SLOTS, HAND, N_RESIDENT, N_NUMBERS = range(5)


class Memory(NamedTuple):
    """`score` of every expert, not negative, and the same bits as whole numbers in `order`; its `uses`, its second time `before`, whether it is `resident`, the last request that `held` it.

    `following` and `previous` link the experts of each list, of which expert e is in `place[e]`; `length` counts them. `number` has the
    request's number, the slots, a hand and the residents; `value` a number of the policy's own; `decay` its fading per step; `cost` bytes
    relative to the mean; `own` [N_OWN, experts] further numbers of the policy's own.
    """

    score: NDArray[Any]
    order: NDArray[Any]
    uses: NDArray[np.int64]
    before: NDArray[np.int64]
    resident: NDArray[np.uint8]
    held: NDArray[np.int64]
    following: NDArray[np.int32]
    previous: NDArray[np.int32]
    place: NDArray[np.int8]
    length: NDArray[np.int64]
    number: NDArray[np.int64]
    value: NDArray[np.float64]
    decay: NDArray[np.float32]
    own: NDArray[np.float32]
    cost: NDArray[np.float64]


def new_memory(
    n_slots: int, cost: NDArray[np.float64], score_type: type[Any], decay: NDArray[np.float32] | None = None
) -> Memory:
    """An empty pool."""
    n = len(cost)
    score = np.zeros(n, score_type)
    links = np.arange(n + N_LISTS, dtype=np.int32)
    number = np.zeros(N_NUMBERS, np.int64)
    number[N_SLOTS] = n_slots
    number[HAND] = NOWHERE
    return Memory(
        score=score,
        order=score.view(np.int32 if score.itemsize == 4 else np.int64),
        uses=np.zeros(n, np.int64),
        before=np.zeros(n, np.int64),
        resident=np.zeros(n, np.uint8),
        held=np.full(n, -1, np.int64),
        following=links,
        previous=links.copy(),
        place=np.full(n, NOWHERE, np.int8),
        length=np.zeros(N_LISTS, np.int64),
        number=number,
        value=np.zeros(1),
        decay=np.ones(2, np.float32) if decay is None else decay,
        cost=cost,
        own=np.zeros((N_OWN, n), np.float32),
    )


def is_held(m: Memory, e: int) -> bool:
    """Whether this request needs the expert."""
    return bool(m.held[e] == m.number[CLOCK])


def push(m: Memory, which: int, e: int) -> None:
    """Put an expert that is in no list at the front of one."""
    sentinel = len(m.place) + which
    first = m.following[sentinel]
    m.following[sentinel] = e
    m.previous[e] = sentinel
    m.following[e] = first
    m.previous[first] = e
    m.place[e] = which
    m.length[which] += 1


def take(m: Memory, e: int) -> None:
    """Take an expert out of its list."""
    m.length[m.place[e]] -= 1
    m.place[e] = NOWHERE
    m.following[m.previous[e]] = m.following[e]
    m.previous[m.following[e]] = m.previous[e]


def last(m: Memory, which: int) -> int:
    """The expert at a list's end, NOWHERE if it is empty."""
    e = m.previous[len(m.place) + which]
    return int(e) if e < len(m.place) else NOWHERE


def last_loose(m: Memory, which: int) -> int:
    """The last expert of a list that is not held, NOWHERE if there is none."""
    e = m.previous[len(m.place) + which]
    while e < len(m.place):
        if m.held[e] != m.number[CLOCK]:
            return int(e)
        e = m.previous[e]
    return NOWHERE


def take_last_loose(m: Memory, which: int) -> int:
    """The same, taken out of the list."""
    e = last_loose(m, which)
    if e != NOWHERE:
        take(m, e)
    return e


def lowest_score(m: Memory) -> int:
    """The resident with the lowest score that is not held (ties: the lowest number), NOWHERE if there is none."""
    # Scores are not negative, so floats order as their bits do; the least of whole numbers is found a vector at a time.
    now = m.number[CLOCK]
    order = m.order
    none = np.iinfo(order.dtype).max
    least = none
    for e in range(len(order)):
        least = min(least, order[e] if (m.resident[e] != 0) & (m.held[e] != now) else none)
    for e in range(len(order)):
        if order[e] == least and m.resident[e] != 0 and m.held[e] != now:
            return e
    return NOWHERE


PARTS = (is_held, push, take, last, last_loose, take_last_loose, lowest_score)
