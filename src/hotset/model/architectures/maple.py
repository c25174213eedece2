"""Maple: Qwen3-MoE where layers with a window turn and the others do not, with bounded SwiGLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Activation, Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("maple", "Maple")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(2)
    limits = keys.arch.floats("swiglu_clamp_exp", keys.n_blocks, 0.0)

    def layer(i: int) -> LayerRule:
        attention = keys.attention(keys.rope(swa=True) if slides[i] else None, i, swa=slides[i], qk_norm="head")
        return LayerRule(attention, (Branch((keys.experts(activation=Activation(limit=limits[i])),)),))

    return keys.model(layer)
