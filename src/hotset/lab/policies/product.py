"""The best of the search for a better policy, for pools of all kinds: recent use, use over a longer time and the last use multiplied.

It is the expert cache's own (kernels/product.py has the formula), one row a request.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotset.experts.policy import Policy
from hotset.kernels import product
from hotset.lab.memory import Memory
from hotset.lab.policies.scored import evict_lowest
from hotset.lab.replay import Rules, ignore

# Rows of a memory's own numbers.
RECENT, LONGER, LAST = range(3)
RECENT_FADE, LONGER_FADE, LAST_FADE = Policy("product", None).decay_table(1)[1]
KEPT, FLOOR, ONE = np.float32(product.KEPT), np.float32(product.FLOOR), np.float32(1)


def weigh(m: Memory, e: int) -> None:
    m.score[e] = m.own[RECENT, e] * m.own[LAST, e] * (m.own[LONGER, e] + FLOOR)


def fade_all(m: Memory, begins: bool) -> None:
    for e in range(len(m.score)):
        if begins:
            m.own[RECENT, e] = np.float32(0)
            m.own[LONGER, e] *= KEPT
        m.own[RECENT, e] *= RECENT_FADE
        m.own[LONGER, e] *= LONGER_FADE
        m.own[LAST, e] *= LAST_FADE
        weigh(m, e)


def fade_and_count(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    if first:
        fade_all(m, begins)
    for e in experts:
        m.own[RECENT, e] += ONE
        m.own[LONGER, e] += ONE
        m.own[LAST, e] = ONE
        weigh(m, e)


PRODUCT = Rules(fade_and_count, ignore, evict_lowest, ignore, (weigh, fade_all), np.float32)
