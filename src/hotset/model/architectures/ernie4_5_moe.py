"""ERNIE 4.5: softmax with a selection bias, experts in every n-th layer after the leading dense ones, a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("ernie4_5-moe", "ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope("neighbours"))
    experts = keys.experts(selection_bias="exp_probs_b.bias")
    step = keys.count("interleave_moe_layer_step", 1)

    def layer(i: int) -> LayerRule:
        has_experts = i >= keys.n_dense and (i + 1) % step == 0
        return LayerRule(attention, (Branch((experts, *keys.shared()) if has_experts else (Dense(),)),))

    return keys.model(layer)
