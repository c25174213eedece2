"""Which routers can be asked before their turn: what the next layer's router makes of a layer's input is likely what it will pick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.model.weights import ExpertWeights

if TYPE_CHECKING:
    from hotset.model.weights import BranchWeights, Layer, NormWeights, Weights


@dataclass(frozen=True, eq=False)
class NextRouter:
    """The router of the next layer, and the norm of the rows that it reads."""

    norm: NormWeights
    experts: ExpertWeights


def next_routers(weights: Weights) -> dict[int, NextRouter]:
    """By the index of a layer's experts: the next layer's router, where both layers add their experts to the residual rows and nothing else."""
    found = {}
    for layer, following in zip(weights.layers, weights.layers[1:], strict=False):
        here, there = _plain(layer), _plain(following)
        if here and there:
            branch, experts = there
            if branch.norm is not None and experts.rule.router_input == "normed":
                found[here[1].index] = NextRouter(branch.norm, experts)
    return found


def _plain(layer: Layer) -> tuple[BranchWeights, ExpertWeights] | None:
    """The only branch of a layer and its experts; None where results are normed or scaled before they are added."""
    rule = layer.rule
    if len(layer.feed) != 1 or layer.feed_post_norm or rule.feed_scale != 1.0 or rule.residual_scale != 1.0:
        return None
    (branch,) = layer.feed
    experts = next((part for part in branch.parts if isinstance(part, ExpertWeights)), None)
    if experts is None or branch.post_norm or branch.rule.source != "residual" or layer.output_scale != 1.0:
        return None
    return branch, experts
