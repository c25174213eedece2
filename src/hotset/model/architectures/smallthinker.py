"""SmallThinker: the router reads the layer's raw input, ReLU, rotation in all but every fourth layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Activation, Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


STEP = 4


@architecture("smallthinker", "SmallThinker-4B-A0.6B, SmallThinker-21B-A3B")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(STEP, full_first=True)
    experts = keys.experts(activation=Activation("relu"), router_input="layer input")

    def layer(i: int) -> LayerRule:
        # llama.cpp takes a model of as many layers as the step for one that turns everywhere.
        turns = slides[i] or not keys.number("attention.sliding_window") or keys.n_layers == STEP
        attention = keys.attention(keys.rope(swa=slides[i]) if turns else None, i, swa=slides[i])
        return LayerRule(attention, (Branch((experts,)),))

    return keys.model(layer)
