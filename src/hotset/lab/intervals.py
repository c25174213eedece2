"""Confidence intervals of a hit rate: answers are drawn again and again from those there are, for tokens of one answer are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_DRAWS = 1000


def interval(hits: NDArray[np.int64], needed: NDArray[np.int64], seed: int = 0) -> tuple[float, float] | None:
    """The middle 95 % of sum(hits) / sum(needed) over draws of as many answers as there are; None for fewer than two."""
    n = len(hits)
    if n < 2 or not needed.all():
        return None
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), N_DRAWS)
    low, high = np.quantile((drawn @ hits) / (drawn @ needed), (0.025, 0.975))
    return float(low), float(high)
