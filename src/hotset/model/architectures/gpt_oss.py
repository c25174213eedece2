"""gpt-oss: biases, attention sinks, every other layer with a window, clamped SwiGLU, softmax over the picks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Activation, Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("gpt-oss", "gpt-oss-20b, gpt-oss-120b")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(2)
    experts = keys.experts(
        keys.router("softmax of picks", renormalise=False), activation=Activation("swiglu oai", limit=7.0)
    )
    feed = Branch((experts,), norm="post_attention_norm")

    def layer(i: int) -> LayerRule:
        return LayerRule(keys.attention(keys.rope(swa=slides[i]), i, swa=slides[i], sinks=True), (feed,))

    return keys.model(layer)
