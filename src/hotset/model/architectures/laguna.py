"""Laguna: windows in three of four layers, a gate on each head's output, sigmoid scores with a selection bias, a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("laguna", "Laguna")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(4, full_first=True)
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")

    def layer(i: int) -> LayerRule:
        attention = keys.attention(keys.rope(swa=slides[i]), i, swa=slides[i], qk_norm="head", gate="softplus")
        return LayerRule(attention, keys.feed(i, experts, *keys.shared()))

    return keys.model(layer)
