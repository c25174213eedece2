"""DeepSeek-V2, V3 and R1, Kimi-K2 and GLM-4.7-Flash: latent attention, leading dense layers, shared experts, groups of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


GLM_FLASH_LAYERS, GLM_VOCABULARY = (47, 48), 154880


@architecture("deepseek2", "DeepSeek-V2, V2-Lite, V3, R1, Kimi-K2, GLM-4.7-Flash")
def config(keys: Keys) -> ModelConfig:
    # Early files of GLM-4.7-Flash do not say that its scores are sigmoids.
    is_flash = keys.n_layers in GLM_FLASH_LAYERS and keys.vocabulary() == GLM_VOCABULARY
    router = keys.router("sigmoid" if is_flash else "softmax", renormalise=False)
    attention = keys.latent_attention()
    experts = keys.experts(router, selection_bias="exp_probs_b.bias")
    return keys.model(lambda i: LayerRule(attention, keys.feed(i, experts, *keys.shared())))
