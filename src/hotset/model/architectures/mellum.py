"""Mellum 2: Qwen3-MoE with windows in some layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("mellum", "Mellum 2")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(4)
    feed = Branch((keys.experts(),))

    def layer(i: int) -> LayerRule:
        return LayerRule(keys.attention(keys.rope(swa=slides[i]), i, swa=slides[i], qk_norm="head"), (feed,))

    return keys.model(layer)
