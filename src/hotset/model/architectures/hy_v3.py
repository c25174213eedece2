"""Hunyuan 3: head norms, sigmoid scores with a selection bias, a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("hy_v3", "Hunyuan 3")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="head")
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b")

    def layer(i: int) -> LayerRule:
        parts = (Dense(),) if i < keys.n_dense else (experts, Dense("_shexp"))
        return LayerRule(attention, (Branch(parts),))

    return keys.model(layer, ignored=("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"))
