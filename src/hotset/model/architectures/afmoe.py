"""AFMoE (Trinity): norms before and after, gated attention, rotation only in layers with a window, sigmoid scores with a selection bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule, mean_scale

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("afmoe", "Trinity-Nano, Trinity-Mini, Trinity-Large")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(4)
    rope = keys.rope(swa=True)
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")

    def layer(i: int) -> LayerRule:
        attention = keys.attention(rope if slides[i] else None, i, swa=slides[i], qk_norm="head", gate="sigmoid")
        return LayerRule(
            attention,
            keys.feed(i, experts, *keys.shared()),
            mixer_post_norm="post_attention_norm",
            feed_post_norm="post_ffw_norm",
        )

    return keys.model(layer, embedding_scale=mean_scale(keys.d_model))
