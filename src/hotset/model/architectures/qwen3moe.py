"""Qwen3-MoE: a norm on each head's q and k; every layer picks experts by softmax, weights renormalised. For text, the vision model is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("qwen3moe", "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder")
@architecture("qwen3vlmoe", "Qwen3-VL-30B-A3B, text only")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="head")
    return keys.model(lambda _: LayerRule(attention, (Branch((keys.experts(),)),)))
