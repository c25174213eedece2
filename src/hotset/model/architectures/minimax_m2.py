"""MiniMax-M2: norms over the whole q and k, half of each head turns, sigmoid scores with a selection bias, always renormalised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("minimax-m2", "MiniMax-M2")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="whole")
    experts = keys.experts(keys.router("sigmoid"), width="feed_forward_length", selection_bias="exp_probs_b.bias")
    return keys.model(lambda _: LayerRule(attention, (Branch((experts,)),)))
