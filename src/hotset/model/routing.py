"""Which experts a token goes to: the k best router logits and their weights.

scores = softmax(logits) or sigmoid(logits); picks = the k best of logits (or of scores + bias), ties to the lowest expert;
weights = scores of the picks, divided by their sum where the model says so, times a scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hotset.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scoring = Literal["softmax", "sigmoid"]
SCORINGS = ("softmax", "sigmoid")


@dataclass(frozen=True)
class RouterRule:
    """How a model's router picks. `scale` multiplies the weights once; 0 and None are 1, for files leave it out either way."""

    n_experts: int
    n_picks: int
    scoring: Scoring = "softmax"
    renormalise: bool = True
    scale: float | None = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.n_picks <= self.n_experts:
            raise InputError(f"{self.n_picks} picks per token must be between 1 and the {self.n_experts} experts")
        if self.scoring not in SCORINGS:
            raise InputError(f"router scoring {self.scoring!r} is none of {', '.join(SCORINGS)}")
        object.__setattr__(self, "scale", float(self.scale or 1.0))


def route(
    logits: NDArray[np.floating[Any]], rule: RouterRule, bias: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Logits [m, >= n_experts] and a selection bias [n_experts] -> picks int32 [m, k], best first, and weights float32 [m, k]."""
    logits = np.asarray(logits, np.float32)[:, : rule.n_experts]
    scores = _softmax(logits) if rule.scoring == "softmax" else _sigmoid(logits)
    # Without a bias the logits themselves are ranked: their order survives where scores round to the same number.
    ranked = logits if bias is None else scores + np.asarray(bias, np.float32)
    ranked = np.where(np.isnan(ranked), -np.inf, ranked)
    picks = np.argsort(-ranked, axis=1, kind="stable")[:, : rule.n_picks]
    weights = np.take_along_axis(scores, picks, 1)
    if rule.renormalise:
        total = weights.sum(1, keepdims=True)
        weights /= np.where(total == 0, np.float32(1), total)
    return picks.astype(np.int32), weights * np.float32(rule.scale)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    top = np.where(np.isnan(logits), -np.inf, logits).max(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        e = np.exp(np.where(logits == top, np.float32(0), logits - top))
    return np.asarray(e / e.sum(1, keepdims=True))


def _sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-logits)), np.float32)


def score_row(logits: NDArray[np.float32], sigmoid: bool, scores: NDArray[np.float32]) -> None:
    """Score one row in plain loops, to run under njit: logits and scores [n_experts]."""
    one, top, whole = np.float32(1), np.float32(-np.inf), np.float32(0)
    for e in range(len(logits)):
        top = max(top, logits[e])
    for e in range(len(logits)):
        if sigmoid:
            scores[e] = one / (one + np.exp(-logits[e]))
        else:
            scores[e] = one if logits[e] == top else np.exp(logits[e] - top)
            whole += scores[e]
    if not sigmoid:
        for e in range(len(logits)):
            scores[e] /= whole


def pick_row(
    ranked: NDArray[np.float32],
    scores: NDArray[np.float32],
    rule: tuple[bool, float],
    picks: NDArray[np.int32],
    weights: NDArray[np.float32],
) -> None:
    """Pick for one row in plain loops, to run under njit: `ranked` is the logits, or scores + bias; rule = (renormalise, scale)."""
    taken = np.zeros(len(ranked), np.bool_)
    total = np.float32(0)
    for j in range(len(picks)):
        best, best_rank = -1, np.float32(0)
        for e in range(len(ranked)):
            rank = np.float32(-np.inf) if np.isnan(ranked[e]) else ranked[e]
            if not taken[e] and (best < 0 or rank > best_rank):
                best, best_rank = e, rank
        taken[best] = True
        picks[j] = best
        weights[j] = scores[best]
        total += scores[best]
    for j in range(len(picks)):
        share = weights[j] / total if rule[0] and total != 0 else weights[j]
        weights[j] = share * np.float32(rule[1])
