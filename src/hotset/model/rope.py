"""Rotary positions: which values of a head turn, how fast, and the tables of it, computed in float64 and kept in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pairs = Literal["halves", "neighbours"]


@dataclass(frozen=True)
class Yarn:
    """How YaRN (Peng et al. 2023) stretches a context of `n_ctx_original` tokens: slow turns by the factor, fast ones not at all."""

    n_ctx_original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    share: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Pair i turns by position / (theta^(2 i / n_rotated) * factor * factors[i]).

    `pairs` are (i, i + n_rotated / 2), "halves", or (2 i, 2 i + 1), "neighbours". `magnitude` multiplies cosines and sines. `tensors` names
    the tensor of `factors` in the file: one, or two of which the first serves contexts above `n_ctx_short`; where it is not there nothing is
    multiplied.
    """

    theta: float
    n_rotated: int
    factor: float = 1.0
    pairs: Pairs = "halves"
    yarn: Yarn | None = None
    magnitude: float = 1.0
    tensors: tuple[str, ...] = ()
    n_ctx_short: int = 0
    factors: tuple[float, ...] = ()

    def tensor(self, n_ctx: int) -> str:
        """The tensor of factors for a context of `n_ctx` tokens."""
        return self.tensors[0] if n_ctx > self.n_ctx_short else self.tensors[-1]

    def with_factors(self, factors: NDArray[np.float32]) -> Rope:
        """The same with its factors read."""
        return replace(self, factors=tuple(float(f) for f in factors))


def rope_tables(rope: Rope, n_ctx: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines float32 [n_ctx, n_rotated / 2] (Su et al. 2021; linear scaling divides the position)."""
    angles = np.arange(n_ctx, dtype=np.float64)[:, None] * frequencies(rope)
    return (np.cos(angles) * rope.magnitude).astype(np.float32), (np.sin(angles) * rope.magnitude).astype(np.float32)


def frequencies(rope: Rope) -> NDArray[np.float64]:
    """Radians per position of each pair, float64 [n_rotated / 2]."""
    pairs = np.arange(0, rope.n_rotated, 2, dtype=np.float64)
    fast = rope.theta ** (-pairs / rope.n_rotated)
    if rope.factors:
        fast = fast / np.asarray(rope.factors, np.float64)
    slow = fast / rope.factor
    if rope.yarn is None:
        return slow
    kept = yarn_share(rope, rope.yarn)
    return slow * (1 - kept) + fast * kept


def yarn_share(rope: Rope, yarn: Yarn) -> NDArray[np.float64]:
    """Which part of each pair's own speed YaRN keeps: 1 for pairs that turn often within the original context, 0 for slow ones."""

    def pair_of(turns: float) -> float:
        """The pair that makes so many turns within the original context."""
        return rope.n_rotated * math.log(yarn.n_ctx_original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(0.0, math.floor(pair_of(yarn.beta_fast)))
    high = min(rope.n_rotated - 1.0, math.ceil(pair_of(yarn.beta_slow)))
    pair = np.arange(rope.n_rotated // 2, dtype=np.float64)
    return (1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)) * yarn.share


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """What YaRN multiplies cosines and sines with for a context stretched by `factor`: 0.1 weight ln(factor) + 1."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
