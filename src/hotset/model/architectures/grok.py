"""Grok: norms after attention and experts, bounded scores and logits, GELU; Grok 2 has a dense network beside the experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Activation, Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("grok", "Grok-1, Grok-2")
def config(keys: Keys) -> ModelConfig:
    number = keys.arch.float
    attention = keys.attention(
        keys.rope(),
        scale=number("attention.output_scale", 0.08838834764831845),
        softcap=number("attn_logit_softcapping", 30.0),
    )
    gelu = Activation("gelu")
    # Grok-1 has experts only, and so no width of a dense network of its own.
    has_dense = keys.number("feed_forward_length") != keys.number("expert_feed_forward_length")
    experts = keys.experts(activation=gelu)
    parts = (experts, Dense(activation=gelu)) if has_dense else (experts,)
    rule = LayerRule(
        attention,
        (Branch(parts),),
        mixer_post_norm="attn_output_norm",
        feed_post_norm="layer_output_norm",
        feed_scale=0.5**0.5 if has_dense else 1.0,
    )
    return keys.model(
        lambda _: rule,
        embedding_scale=keys.positive("embedding_scale", 78.38367176906169),
        logit_scale=keys.positive("logit_scale", 0.5773502691896257),
        logit_softcap=number("final_logit_softcapping", 0.0),
    )
