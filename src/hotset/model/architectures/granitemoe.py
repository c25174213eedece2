"""Granite MoE: scales on embeddings, residuals, scores and logits; a shared expert in some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("granitemoe", "Granite 3.0 and 3.1 MoE")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope("neighbours"), scale=keys.arch.float("attention.scale", 0.0))
    feed = Branch((keys.experts(width="feed_forward_length"), *keys.shared()))
    return keys.model(
        lambda _: LayerRule(attention, (feed,), residual_scale=keys.positive("residual_scale", 1.0)),
        embedding_scale=keys.positive("embedding_scale", 1.0),
        logit_scale=1 / keys.positive("logit_scale", 1.0),
    )
