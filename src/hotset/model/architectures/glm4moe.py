"""GLM-4.5: biases on q, k and v, head norms in the larger ones, half of each head turns, sigmoid scores with a selection bias, a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("glm4moe", "GLM-4.5, GLM-4.5-Air, GLM-4.6")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="head", norm_optional=True)
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")
    return keys.model(lambda i: LayerRule(attention, keys.feed(i, experts, *keys.shared(), norm="post_attention_norm")))
