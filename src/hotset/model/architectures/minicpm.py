"""MiniCPM-MoE: Granite's scales under other defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("minicpm", "MiniCPM-MoE-8x2B, MiniCPM")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope("neighbours", factors=True))
    part = keys.experts(width="feed_forward_length") if keys.n_experts else Dense()
    residual = keys.positive("residual_scale", 1.4 / keys.n_layers**0.5)
    return keys.model(
        lambda _: LayerRule(attention, (Branch((part,)),), residual_scale=residual),
        embedding_scale=keys.positive("embedding_scale", 12.0),
        logit_scale=1 / keys.positive("logit_scale", keys.d_model / 256),
    )
