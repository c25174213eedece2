"""Policies that give every expert a score and evict the lowest: LRU, LFU, LRFU, LRU-2, a fixed ranking, FIFO and GDSF. Scores of experts that left are kept, but for FIFO and GDSF.

LRU, LFU and LRFU are the expert cache's own (`experts/request.py`), one row a request.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotset.lab.memory import CLOCK, Memory, lowest_score
from hotset.lab.replay import Rules, ignore, ignore_request


def evict_lowest(m: Memory, e: int) -> int:
    return lowest_score(m)


def note_time(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    for e in experts:
        m.score[e] = m.number[CLOCK]


def count_use(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    for e in experts:
        m.score[e] += 1


def fade_and_add(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    # score = score * d + 1 if picked, in float32, rounded after the product; a pool of many layers fades once a token.
    if first:
        fade = m.decay[1]
        for e in range(len(m.score)):
            m.score[e] = m.score[e] * fade
    for e in experts:
        m.score[e] = m.score[e] + np.float32(1)


def note_last_two_times(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    # The last time but one decides, the last one among experts used once.
    now = m.number[CLOCK] + 1
    for e in experts:
        m.score[e] = (m.before[e] << 32) | now
        m.before[e] = now


def note_arrival(m: Memory, e: int) -> None:
    # One by one, so that no two have the same.
    m.value[0] += 1
    m.score[e] = int(m.value[0])


def value_anew(m: Memory, e: int) -> None:
    # H = L + uses * cost; a slot holds any expert, so bytes count as the cost of fetching, not as room.
    m.uses[e] += 1
    m.score[e] = m.value[0] + m.uses[e] * m.cost[e]


def value_first(m: Memory, e: int) -> None:
    m.uses[e] = 1
    m.score[e] = m.value[0] + m.cost[e]


def evict_least_valued(m: Memory, e: int) -> int:
    v = lowest_score(m)
    if v >= 0:
        m.value[0] = m.score[v]
    return v


LRU = Rules(note_time, ignore, evict_lowest, ignore)
LFU = Rules(count_use, ignore, evict_lowest, ignore)
LRFU = Rules(fade_and_add, ignore, evict_lowest, ignore, score_type=np.float32)
LRU_2 = Rules(note_last_two_times, ignore, evict_lowest, ignore)
FIXED = Rules(ignore_request, ignore, evict_lowest, ignore)
FIFO = Rules(ignore_request, ignore, evict_lowest, note_arrival)
GDSF = Rules(ignore_request, value_anew, evict_least_valued, value_first, score_type=np.float64)
