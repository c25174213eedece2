"""Qwen3-Next and Qwen3.5: gated delta nets, every fourth layer full attention with a gated output; a shared expert behind a sigmoid gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("qwen3next", "Qwen3-Next-80B-A3B, Qwen3-Coder-Next")
def qwen3next(keys: Keys) -> ModelConfig:
    return config(keys, interleaved=True)


@architecture("qwen35moe", "Qwen3.5-35B-A3B, Qwen3.5-397B-A17B, text only")
def qwen35moe(keys: Keys) -> ModelConfig:
    return config(keys, interleaved=False)


def config(keys: Keys, *, interleaved: bool) -> ModelConfig:
    """They differ in how value heads share key heads in their files."""
    interval = keys.count("full_attention_interval", 4)
    attention = keys.attention(keys.rope(), qk_norm="head", gate="query")
    delta = keys.delta_net(interleaved=interleaved)
    shared = Dense("_shexp", row_gate="ffn_gate_inp_shexp")
    feed = Branch((keys.experts(), shared), norm="post_attention_norm")
    return keys.model(lambda i: LayerRule(delta if (i + 1) % interval else attention, (feed,)))
