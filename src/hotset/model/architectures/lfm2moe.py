"""LFM2-MoE: gated short convolutions with attention in between, leading dense layers, sigmoid scores with a selection bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import LayerRule, Mixer, ShortConvolution

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("lfm2moe", "LFM2-8B-A1B")
def config(keys: Keys) -> ModelConfig:
    convolution = ShortConvolution(keys.d_model, keys.count("shortconv.l_cache"))
    experts = keys.experts(keys.router("sigmoid"), selection_bias="exp_probs_b.bias")

    def mixer(i: int) -> Mixer:
        return keys.attention(keys.rope(), i, qk_norm="head") if keys.n_kv_heads[i] else convolution

    return keys.model(lambda i: LayerRule(mixer(i), keys.feed(i, experts)), output_norm="token_embd_norm")
