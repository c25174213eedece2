"""dots.llm1: head norms, leading dense layers, sigmoid scores with a selection bias, shared experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("dots1", "dots.llm1")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="head")
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")
    return keys.model(lambda i: LayerRule(attention, keys.feed(i, experts, *keys.shared())))
