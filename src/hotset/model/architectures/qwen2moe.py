"""Qwen2-MoE: softmax without renormalisation, and a shared expert behind a sigmoid gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("qwen2moe", "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B")
def config(keys: Keys) -> ModelConfig:
    attention = keys.attention(keys.rope())
    shared = Dense("_shexp", row_gate="ffn_gate_inp_shexp")
    feed = Branch((keys.experts(keys.router(renormalise=False)), shared))
    return keys.model(lambda _: LayerRule(attention, (feed,)))
