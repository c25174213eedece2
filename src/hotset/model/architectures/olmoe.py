"""OLMoE: the norm of q and k goes over their whole width; softmax without renormalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("olmoe", "OLMoE-1B-7B")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope(), qk_norm="whole")
    experts = keys.experts(keys.router(renormalise=False), width="feed_forward_length")
    return keys.model(lambda _: LayerRule(attention, (Branch((experts,)),)))
