"""Tiny models in files of their own, and the picks of an engine that records them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from hotset.engine.engine import Engine


def recorded_picks(engine: Engine) -> np.ndarray:
    """The picks int [layers, n, k] of all rows since loading, rows in the order in which they were computed."""
    ring = engine.runner.model.cache.recorded_picks()
    return np.stack(
        [rows[rows[:, 0] >= 0] for rows in ring.transpose(1, 0, 2, 3).reshape(ring.shape[1], -1, ring.shape[3])]
    )


@pytest.fixture(scope="session")
def picks_of():
    return recorded_picks
