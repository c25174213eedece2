"""Ling and Ring 2: head norms, part of each head turns, sigmoid scores with a selection bias and groups of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("bailingmoe2", "Ling-mini-2.0, Ling-flash-2.0, Ring-mini-2.0")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="head")
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")
    return keys.model(lambda i: LayerRule(attention, keys.feed(i, experts, *keys.shared())))
