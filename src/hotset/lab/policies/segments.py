"""Lists by recency in segments: SLRU, ARC and W-TinyLFU."""

from __future__ import annotations

from typing import Any

from hotset.lab.memory import N_SLOTS, NOWHERE, Memory, is_held, last, last_loose, push, take, take_last_loose
from hotset.lab.replay import Rules, ignore_request

# SLRU: four fifths of the slots are protected. W-TinyLFU: a hundredth is a window, the rest such an SLRU; uses are halved after ten per
# slot (Einziger et al., TinyLFU, 2017; here they are counted exactly: experts are few).
PROBATION, PROTECTED, WINDOW = range(3)
AGES_AFTER = 10
# ARC: experts seen once and more than once, and the ghosts of both (Megiddo and Modha, 2003).
ONCE, OFTEN, ONCE_GHOST, OFTEN_GHOST = range(4)


def promote(m: Memory, e: int, n_protected: int) -> None:
    take(m, e)
    push(m, PROTECTED, e)
    if m.length[PROTECTED] > n_protected:
        demoted = last(m, PROTECTED)
        take(m, demoted)
        push(m, PROBATION, demoted)


def slru_hit(m: Memory, e: int) -> None:
    promote(m, e, m.number[N_SLOTS] * 4 // 5)


def slru_enter(m: Memory, e: int) -> None:
    push(m, PROBATION, e)


def slru_victim(m: Memory, e: int) -> int:
    v = take_last_loose(m, PROBATION)
    return v if v != NOWHERE else take_last_loose(m, PROTECTED)


def window_slots(m: Memory) -> int:
    return max(1, int(m.number[N_SLOTS] // 100))


def tiny_needed(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    for e in experts:
        m.uses[e] += 1
    m.value[0] += len(experts)
    if m.value[0] >= AGES_AFTER * m.number[N_SLOTS]:
        m.value[0] = 0
        for e in range(len(m.uses)):
            m.uses[e] //= 2


def tiny_hit(m: Memory, e: int) -> None:
    if m.place[e] == WINDOW:
        take(m, e)
        push(m, WINDOW, e)
    else:
        promote(m, e, (m.number[N_SLOTS] - window_slots(m)) * 4 // 5)


def tiny_enter(m: Memory, e: int) -> None:
    push(m, WINDOW, e)
    if m.length[WINDOW] > window_slots(m):
        aged = last(m, WINDOW)
        take(m, aged)
        push(m, PROBATION, aged)


def tiny_victim(m: Memory, e: int) -> int:
    """The window's oldest against the main part's: the one used less often leaves."""
    old = last_loose(m, PROBATION)
    if old == NOWHERE:
        old = last_loose(m, PROTECTED)
    newcomer = last(m, WINDOW) if m.length[WINDOW] >= window_slots(m) else NOWHERE
    if newcomer != NOWHERE and is_held(m, newcomer):
        newcomer = NOWHERE
    if old == NOWHERE and newcomer == NOWHERE:
        newcomer = last_loose(m, WINDOW)
    v = newcomer if old == NOWHERE or (newcomer != NOWHERE and m.uses[newcomer] <= m.uses[old]) else old
    if v != NOWHERE:
        take(m, v)
    return v


def arc_hit(m: Memory, e: int) -> None:
    take(m, e)
    push(m, OFTEN, e)


def arc_victim(m: Memory, e: int) -> int:
    """REPLACE of the paper; the target size of ONCE is `value`, moved by the ghost that comes back."""
    n_slots = m.number[N_SLOTS]
    adapt(m, e)
    if m.place[e] == NOWHERE:
        if m.length[ONCE] + m.length[ONCE_GHOST] >= n_slots:
            if m.length[ONCE_GHOST] == 0:
                return take_last_loose(m, ONCE)  # ONCE fills all slots: its oldest leaves without a trace
            take(m, last(m, ONCE_GHOST))
        elif m.length.sum() >= 2 * n_slots:
            take(m, last(m, OFTEN_GHOST))
    n_once = m.length[ONCE]
    takes_once = n_once > 0 and (n_once > m.value[0] or (m.place[e] == OFTEN_GHOST and n_once == m.value[0]))
    v = leave(m, ONCE if takes_once else OFTEN)
    return v if v != NOWHERE else leave(m, OFTEN if takes_once else ONCE)


def adapt(m: Memory, e: int) -> None:
    n_once, n_often = m.length[ONCE_GHOST], m.length[OFTEN_GHOST]
    if m.place[e] == ONCE_GHOST:
        m.value[0] = min(m.value[0] + max(n_often / n_once, 1.0), float(m.number[N_SLOTS]))
    elif m.place[e] == OFTEN_GHOST:
        m.value[0] = max(m.value[0] - max(n_once / n_often, 1.0), 0.0)


def leave(m: Memory, which: int) -> int:
    v = take_last_loose(m, which)
    if v != NOWHERE:
        push(m, which + 2, v)
    return v


def arc_enter(m: Memory, e: int) -> None:
    was_ghost = m.place[e] != NOWHERE
    if was_ghost:
        take(m, e)
    push(m, OFTEN if was_ghost else ONCE, e)


SLRU = Rules(ignore_request, slru_hit, slru_victim, slru_enter, (promote,))
W_TINYLFU = Rules(tiny_needed, tiny_hit, tiny_victim, tiny_enter, (promote, window_slots))
ARC = Rules(ignore_request, arc_hit, arc_victim, arc_enter, (adapt, leave))
