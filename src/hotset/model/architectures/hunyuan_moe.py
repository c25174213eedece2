"""Hunyuan-A13B: head norms after the rotation, softmax, a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("hunyuan-moe", "Hunyuan-A13B")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="head", norm_after_rope=True)
    feed = Branch((keys.experts(), Dense("_shexp")))
    return keys.model(lambda _: LayerRule(attention, (feed,)))
