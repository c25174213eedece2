"""Which experts a token goes to: the k best router logits and their weights.

scores = softmax(logits) or sigmoid(logits); picks = the k best of logits (or of scores + bias), ties to the lowest expert;
weights = scores of the picks, divided by their sum where the model says so, times a scale. Where the model has groups of experts, picks
come from its best groups alone. "softmax of picks" ranks logits and takes the softmax over the picks only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hotset.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scoring = Literal["softmax", "sigmoid", "softmax of picks"]
SCORINGS = ("softmax", "sigmoid", "softmax of picks")


@dataclass(frozen=True)
class RouterRule:
    """How a model's router picks. `scale` multiplies the weights once; 0 and None are 1, for files leave it out either way.

    Of `n_groups` groups of neighbouring experts only the `n_groups_used` best are picked from: a group is as good as its best expert where
    scores are a softmax (DeepSeek-V2), as its two best together where they are sigmoids (DeepSeek-V3).
    """

    n_experts: int
    n_picks: int
    scoring: Scoring = "softmax"
    renormalise: bool = True
    scale: float | None = 1.0
    n_groups: int = 1
    n_groups_used: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.n_picks <= self.n_experts:
            raise InputError(f"{self.n_picks} picks per token must be between 1 and the {self.n_experts} experts")
        if self.scoring not in SCORINGS:
            raise InputError(f"router scoring {self.scoring!r} is none of {', '.join(SCORINGS)}")
        if not 1 <= self.n_groups_used <= self.n_groups or self.n_experts % self.n_groups:
            raise InputError(
                f"{self.n_groups_used} of {self.n_groups} groups of {self.n_experts} experts: groups must be of one size, and at least one used"
            )
        if self.n_picks > self.n_groups_used * (self.n_experts // self.n_groups):
            raise InputError(
                f"{self.n_picks} picks per token, but {self.n_groups_used} groups of {self.n_experts // self.n_groups} experts hold fewer"
            )
        object.__setattr__(self, "scale", float(self.scale or 1.0))

    @property
    def has_groups(self) -> bool:
        return self.n_groups_used < self.n_groups

    @property
    def n_summed(self) -> int:
        """How many of a group's best experts say how good it is."""
        return min(2 if self.scoring == "sigmoid" else 1, self.n_experts // self.n_groups)


def route(
    logits: NDArray[np.floating[Any]], rule: RouterRule, bias: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Logits [m, >= n_experts] and a selection bias [n_experts] -> picks int32 [m, k], best first, and weights float32 [m, k]."""
    logits = np.asarray(logits, np.float32)[:, : rule.n_experts]
    scores = _sigmoid(logits) if rule.scoring == "sigmoid" else _softmax(logits)
    # Without a bias the logits themselves are ranked: their order survives where scores round to the same number.
    ranked = logits if bias is None else scores + np.asarray(bias, np.float32)
    ranked = np.where(np.isnan(ranked), -np.inf, ranked)
    if rule.has_groups:
        ranked = _in_best_groups(ranked, scores if bias is None else ranked, rule)
    picks = np.argsort(-ranked, axis=1, kind="stable")[:, : rule.n_picks]
    weights = np.take_along_axis(scores, picks, 1)
    if rule.scoring == "softmax of picks":
        weights = _softmax(np.take_along_axis(logits, picks, 1))
    if rule.renormalise:
        total = weights.sum(1, keepdims=True)
        weights /= np.where(total == 0, np.float32(1), total)
    return picks.astype(np.int32), weights * np.float32(rule.scale)


def _in_best_groups(ranked: NDArray[np.float32], scores: NDArray[np.float32], rule: RouterRule) -> NDArray[np.float32]:
    """`ranked` with minus infinity for experts outside the best groups, which are judged by `scores`; ties to the lowest group."""
    m, size = len(ranked), rule.n_experts // rule.n_groups
    inside = np.sort(scores.reshape(m, rule.n_groups, size), -1)[:, :, size - rule.n_summed :]
    best = np.argsort(-inside.sum(-1), axis=1, kind="stable")[:, : rule.n_groups_used]
    allowed = np.zeros((m, rule.n_groups), np.bool_)
    np.put_along_axis(allowed, best, values=True, axis=1)
    return np.where(np.repeat(allowed, size, 1), ranked, np.float32(-np.inf))


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    top = np.where(np.isnan(logits), -np.inf, logits).max(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        e = np.exp(np.where(logits == top, np.float32(0), logits - top))
    return np.asarray(e / e.sum(1, keepdims=True))


def _sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-logits)), np.float32)
