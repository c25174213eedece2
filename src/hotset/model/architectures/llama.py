"""Llama and what shares its files: Mistral, and Mixtral with experts (softmax, weights renormalised); neighbouring values of a head turn together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("llama", "Llama 1 to 3, Mistral, Mixtral 8x7B and 8x22B")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope("neighbours", factors=True), scale=keys.arch.float("attention.scale", 0.0))
    part = keys.experts(width="feed_forward_length") if keys.n_experts else Dense()
    return keys.model(lambda _: LayerRule(attention, (Branch((part,)),)))
