"""Llama 4: one expert by sigmoid whose weight multiplies its input, chunked attention, every fourth layer without rotation over all positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule, Temperature

if TYPE_CHECKING:
    from hotset.model.keys import Keys


CHUNK = 8192
NO_ROPE_STEP = 4
# The largest of the family is the one without a norm on q and k.
EXPERTS_WITHOUT_NORM = 128


@architecture("llama4", "Llama 4 Scout, Llama 4 Maverick")
def config(keys: Keys) -> ModelConfig:
    step = keys.number("interleave_moe_layer_step")
    experts = keys.experts(keys.router("sigmoid", renormalise=False), weights_on_input=True)
    warm = Temperature(keys.arch.float("attention.temperature_scale", 0.1), CHUNK)
    norm = "none" if keys.n_experts == EXPERTS_WITHOUT_NORM else "unit"

    def layer(i: int) -> LayerRule:
        if (i + 1) % NO_ROPE_STEP:
            rope = keys.rope("neighbours", factors=True)
            chunk = keys.count("attention.chunk_size", CHUNK)
            attention = keys.attention(rope, i, chunk=chunk, qk_norm=norm, norm_after_rope=True)
        else:
            attention = keys.attention(None, i, temperature=warm)
        parts = (experts, Dense("_shexp")) if step and (i + 1) % step == 0 else (Dense(),)
        return LayerRule(attention, (Branch(parts),))

    return keys.model(layer)
