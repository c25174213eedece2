"""DeepSeek-MoE, the first: plain attention, leading dense layers, shared experts, softmax without renormalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("deepseek", "DeepSeek-MoE-16B")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope("neighbours"))
    experts = keys.experts(keys.router(renormalise=False))
    return keys.model(lambda i: LayerRule(attention, keys.feed(i, experts, *keys.shared())))
