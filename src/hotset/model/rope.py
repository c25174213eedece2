"""Tables of rotary positions, computed in float64 and kept in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hotset.model.config import Rope


def rope_tables(rope: Rope, n_ctx: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines float32 [n_ctx, n_rotated / 2] (Su et al. 2021; linear scaling divides the position)."""
    pairs = np.arange(0, rope.n_rotated, 2, dtype=np.float64)
    angles = np.arange(n_ctx, dtype=np.float64)[:, None] / rope.factor * rope.theta ** (-pairs / rope.n_rotated)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
