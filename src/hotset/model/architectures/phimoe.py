"""Phi-3.5-MoE: biases everywhere, rotary factors for short and long contexts, softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("phimoe", "Phi-3.5-MoE")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.long_rope())
    feed = Branch((keys.experts(width="feed_forward_length"),))
    return keys.model(lambda _: LayerRule(attention, (feed,)))
