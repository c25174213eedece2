"""A picture of the expert cache: what is resident, how warm every expert is, and what was picked lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.kernels.product import RECENT, SCORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hotset.experts.layer_state import LayerState
    from hotset.experts.policy import Policy

# An expert that LRU has not seen for so many requests is half as warm.
LRU_HALF_LIFE = 16


@dataclass(frozen=True, eq=False)
class ExpertMap:
    """`resident` bool [layers, experts], `heat` float32 [layers, experts] from 0 to 1, after `step` requests of each layer.

    `picks` int16 [steps, layers, rows, k] are those of the last requests, as far as the cache records them; -1 in padded rows.
    """

    step: int
    resident: NDArray[np.bool_]
    heat: NDArray[np.float32]
    picks: NDArray[np.int16]

    def picked_since(self, step: int) -> list[list[int]]:
        """Per layer the experts that requests after number `step` picked, as far as they were recorded; ascending."""
        n = min(max(self.step - step, 0), len(self.picks))
        recent = self.picks[len(self.picks) - n :]
        found = [np.unique(recent[:, layer]) for layer in range(len(self.resident))]
        return [experts[experts >= 0].tolist() for experts in found]


def expert_map(policy: Policy, layers: Sequence[LayerState], picks: NDArray[np.int16]) -> ExpertMap:
    """The picture of layers in the reference's form."""
    n_scores, n_experts = layers[0].scores.shape if layers else (policy.kind.n_scores, 0)
    step = np.array([state.step[0] for state in layers], np.int32)
    scores = np.array([state.scores for state in layers]).reshape(len(layers), n_scores, n_experts)
    slots = np.array([state.slot_of_expert for state in layers], np.int32).reshape(len(layers), n_experts)
    return ExpertMap(int(step.max(initial=0)), slots >= 0, heat(policy, scores, step), picks)


def heat(policy: Policy, scores: NDArray[Any], step: NDArray[np.int32]) -> NDArray[np.float32]:
    """Scores [layers, n_scores, experts] after step [layers] requests -> float32 0..1.

    LRFU's, and product's of recent use, are against an expert that every token picks, LFU's against the layer's most used, LRU's go by age;
    `static` keeps none.
    """
    values = np.asarray(scores[:, RECENT if policy.name == "product" else SCORE], np.float32)
    if policy.name in ("lrfu", "product"):
        return np.asarray(np.minimum(values * (1 - policy.decay_table(1)[1, 0]), 1), np.float32)
    if policy.name == "lfu":
        return np.asarray(values / np.maximum(values.max(axis=1, keepdims=True, initial=0), 1), np.float32)
    if policy.name == "lru":
        age = np.exp2((values - step[:, None]) / LRU_HALF_LIFE)
        return np.asarray(np.where(values > 0, age, 0), np.float32)
    return np.zeros_like(values)
