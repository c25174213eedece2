"""MiMo-V2: windows with sinks and heads of their own count, values narrower than keys, part of each head turns, sigmoid scores with a selection bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("mimo2", "MiMo-V2-Flash")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(2)
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")

    def layer(i: int) -> LayerRule:
        attention = keys.attention(keys.rope(swa=slides[i]), i, swa=slides[i], sinks=True)
        return LayerRule(attention, (Branch((Dense(),) if i < keys.n_dense else (experts,)),))

    return keys.model(layer, ignored=("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"))
