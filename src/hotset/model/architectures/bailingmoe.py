"""Ling, the first: plain attention and shared experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("bailingmoe", "Ling-lite, Ling-plus")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope("neighbours"))
    experts = keys.experts(keys.router(renormalise=False))
    return keys.model(lambda _: LayerRule(attention, (Branch((experts, *keys.shared())),)))
