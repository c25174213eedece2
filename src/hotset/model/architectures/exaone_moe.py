"""K-EXAONE: only layers with a window turn; head norms, sigmoid scores with a selection bias, a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("exaone-moe", "K-EXAONE-236B-A23B")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(4)
    rope = keys.rope(swa=True, factors=True)
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")

    def layer(i: int) -> LayerRule:
        attention = keys.attention(rope if slides[i] else None, i, swa=slides[i], qk_norm="head")
        return LayerRule(attention, keys.feed(i, experts, *keys.shared()))

    return keys.model(layer)
