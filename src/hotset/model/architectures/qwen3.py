"""Qwen3: dense, with a norm on each head's q and k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("qwen3", "Qwen3, dense")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="head")
    return keys.model(lambda _: LayerRule(attention, (Branch((Dense(),)),)))
