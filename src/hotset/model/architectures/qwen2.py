"""Qwen2 and Qwen2.5: dense, with biases on q, k and v."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("qwen2", "Qwen2 and Qwen2.5, dense")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope())
    return keys.model(lambda _: LayerRule(attention, (Branch((Dense(),)),)))
