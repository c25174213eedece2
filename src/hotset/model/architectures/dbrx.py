"""DBRX: layer norm, q, k and v bounded, softmax over 16 experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("dbrx", "DBRX")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), clamp=keys.arch.float("attention.clamp_kqv", 0.0))
    feed = Branch((keys.experts(width="feed_forward_length"),), norm="attn_output_norm")
    return keys.model(lambda _: LayerRule(attention, (feed,)), norm=keys.norm(centred=True))
