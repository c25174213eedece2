"""Gemma 4 with experts: norms around everything, unit norms on v, windows with heads of their own width, a dense network beside the experts, GELU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.errors import UnsupportedError
from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Activation, Branch, Dense, LayerRule, mean_scale

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("gemma4", "Gemma 4 26B-A4B")
def config(keys: Keys) -> ModelConfig:
    for key in ("embedding_length_per_layer_input", "attention.shared_kv_layers"):
        if value := keys.number(key):
            raise UnsupportedError(keys.arch.path, key, f"is {value}", value=value, hint="only models with experts run")
    slides = keys.sliding(6)
    gelu = Activation("gelu")
    experts = keys.experts(activation=gelu, router_input="scaled")
    feed = (
        Branch((Dense(activation=gelu),), post_norm="post_ffw_norm_1"),
        Branch((experts,), norm="pre_ffw_norm_2", post_norm="post_ffw_norm_2"),
    )

    def layer(i: int) -> LayerRule:
        rope = keys.rope(swa=slides[i], factors=not slides[i])
        attention = keys.attention(
            rope, i, swa=slides[i], qk_norm="head", unit_values=True, keys_are_values=not slides[i], scale=1.0
        )
        return LayerRule(
            attention, feed, mixer_post_norm="post_attention_norm", feed_post_norm="post_ffw_norm", output_scale=True
        )

    return keys.model(
        layer,
        embedding_scale=mean_scale(keys.d_model),
        logit_softcap=keys.arch.float("final_logit_softcapping", 0.0),
    )
