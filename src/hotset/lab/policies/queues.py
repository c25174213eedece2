"""FIFO queues that give used experts another chance: CLOCK, SIEVE and S3-FIFO."""

from __future__ import annotations

from hotset.lab.memory import HAND, N_SLOTS, NOWHERE, Memory, is_held, last, push, take
from hotset.lab.replay import Rules, ignore_request

QUEUE = 0
# S3-FIFO: a tenth of the slots for newcomers; two uses there take one into the main queue, where three count at most; nine
# tenths as many ghosts (Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023).
SMALL, MAIN, GHOST = range(3)
SMALL_SHARE = 10
MOVES_AT = 2
MOST_USES = 3
RETURNS = 1


def mark(m: Memory, e: int) -> None:
    m.uses[e] = 1


def enter_queue(m: Memory, e: int) -> None:
    m.uses[e] = 0
    push(m, QUEUE, e)


def clock_victim(m: Memory, e: int) -> int:
    """The oldest without a mark; marked and held ones on the way go to the front, marks cleared."""
    for _ in range(2 * m.length[QUEUE]):
        v = last(m, QUEUE)
        take(m, v)
        if m.uses[v] == 0 and not is_held(m, v):
            return v
        if not is_held(m, v):
            m.uses[v] = 0
        push(m, QUEUE, v)
    return NOWHERE


def sieve_victim(m: Memory, e: int) -> int:
    """The hand goes from old to new, clears marks, and takes the first expert without one; experts stay where they are."""
    v = m.number[HAND]
    for _ in range(2 * m.length[QUEUE] + 1):
        if v == NOWHERE:
            v = last(m, QUEUE)
        newer = m.previous[v]
        beyond = newer if newer < len(m.place) else NOWHERE
        if not is_held(m, v):
            if m.uses[v] == 0:
                take(m, v)
                m.number[HAND] = beyond
                return int(v)
            m.uses[v] = 0
        v = beyond
    return NOWHERE


def use_again(m: Memory, e: int) -> None:
    m.uses[e] = min(m.uses[e] + 1, MOST_USES)


def small_slots(m: Memory) -> int:
    return int(m.number[N_SLOTS] // SMALL_SHARE)


def enter_s3(m: Memory, e: int) -> None:
    returns = m.before[e] == RETURNS
    m.before[e] = 0
    m.uses[e] = 0
    push(m, MAIN if returns or fills_main(m) else SMALL, e)


def fills_main(m: Memory) -> bool:
    """Until the first eviction newcomers that the small queue has no room for start in the main queue."""
    return bool(m.number[HAND] == NOWHERE and m.length[SMALL] >= max(small_slots(m), 1))


def s3_victim(m: Memory, e: int) -> int:
    m.number[HAND] = 0
    if m.place[e] == GHOST:
        take(m, e)
        m.before[e] = RETURNS
    if m.length[MAIN] <= m.number[N_SLOTS] - small_slots(m):
        v = small_victim(m)
        return v if v != NOWHERE else main_victim(m)
    v = main_victim(m)
    return v if v != NOWHERE else small_victim(m)


def small_victim(m: Memory) -> int:
    """The oldest newcomer that was not used enough becomes a ghost; those before it that were go to the main queue."""
    v = last(m, SMALL)
    while v != NOWHERE:
        newer = m.previous[v]
        if not is_held(m, v):
            take(m, v)
            if m.uses[v] < MOVES_AT:
                remember(m, v)
                return int(v)
            m.uses[v] = 0
            push(m, MAIN, v)
        v = newer if newer < len(m.place) else NOWHERE
    return NOWHERE


def remember(m: Memory, v: int) -> None:
    n_ghosts = m.number[N_SLOTS] * 9 // 10
    if n_ghosts == 0:
        return
    if m.length[GHOST] >= n_ghosts:
        take(m, last(m, GHOST))
    push(m, GHOST, v)


def main_victim(m: Memory) -> int:
    """The oldest that was not used since it was last looked at; others lose one use and go to the front."""
    for _ in range((MOST_USES + 1) * m.length[MAIN]):
        v = last(m, MAIN)
        take(m, v)
        if m.uses[v] == 0 and not is_held(m, v):
            return v
        if not is_held(m, v):
            m.uses[v] -= 1
        push(m, MAIN, v)
    return NOWHERE


CLOCK_RULES = Rules(ignore_request, mark, clock_victim, enter_queue)
SIEVE = Rules(ignore_request, mark, sieve_victim, enter_queue)
S3_FIFO = Rules(
    ignore_request, use_again, s3_victim, enter_s3, (small_slots, fills_main, remember, small_victim, main_victim)
)
