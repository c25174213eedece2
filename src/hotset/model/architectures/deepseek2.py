"""DeepSeek-V2, V3 and R1, Kimi-K2 and GLM-4.7-Flash: latent attention, leading dense layers, shared experts, groups of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("deepseek2", "DeepSeek-V2, V2-Lite, V3, R1, Kimi-K2, GLM-4.7-Flash")
def config(keys: Keys) -> ModelConfig:
    attention = keys.latent_attention()
    experts = keys.experts(keys.router(renormalise=False), selection_bias="exp_probs_b.bias")
    return keys.model(lambda i: LayerRule(attention, keys.feed(i, experts, *keys.shared())))
