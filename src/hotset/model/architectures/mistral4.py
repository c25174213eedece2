"""Mistral 4: DeepSeek's latent attention, softmax scores with a selection bias, queries that grow with the position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule, Temperature

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("mistral4", "Mistral Small 4")
def config(keys: Keys) -> ModelConfig:
    scale = keys.arch.float("attention.temperature_scale", 0.0)
    step = keys.count("rope.scaling.original_context_length", keys.count("context_length"))
    attention = keys.latent_attention(temperature=Temperature(scale, step) if scale else None)
    experts = keys.experts(keys.router(), selection_bias="exp_probs_b.bias")
    return keys.model(lambda i: LayerRule(attention, keys.feed(i, experts, *keys.shared())))
