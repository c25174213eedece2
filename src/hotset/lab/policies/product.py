"""The best of the search for a better policy: recent use, use over a longer time and the last use multiplied; docs/policies.md has its gains.

score = s * r * (q + 3/8), where s and q count uses and fade with half-lives of 16 and 128 tokens, and r is 1 at a use and fades with one of 6

Where an answer begins s is forgotten and an eighth of q stays: the next one may be about something else. Products and sums of float32 alone,
in this order, so that any device can give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotset.lab.memory import Memory
from hotset.lab.policies.scored import evict_lowest
from hotset.lab.replay import Rules, ignore

RECENT, LONG, LAST = range(3)
RECENT_FADE, LONG_FADE, LAST_FADE = (np.float32(2 ** (-1 / half_life)) for half_life in (16, 128, 6))
KEPT = np.float32(1 / 8)
FLOOR = np.float32(3 / 8)
ONE = np.float32(1)


def weigh(m: Memory, e: int) -> None:
    m.score[e] = m.own[RECENT, e] * m.own[LAST, e] * (m.own[LONG, e] + FLOOR)


def fade_all(m: Memory, begins: bool) -> None:
    for e in range(len(m.score)):
        if begins:
            m.own[RECENT, e] = np.float32(0)
            m.own[LONG, e] *= KEPT
        m.own[RECENT, e] *= RECENT_FADE
        m.own[LONG, e] *= LONG_FADE
        m.own[LAST, e] *= LAST_FADE
        weigh(m, e)


def fade_and_count(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    if first:
        fade_all(m, begins)
    for e in experts:
        m.own[RECENT, e] += ONE
        m.own[LONG, e] += ONE
        m.own[LAST, e] = ONE
        weigh(m, e)


PRODUCT = Rules(fade_and_count, ignore, evict_lowest, ignore, (weigh, fade_all), np.float32)
