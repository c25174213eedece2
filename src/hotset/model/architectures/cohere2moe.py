"""Command with experts: attention and feed-forward read the same normed rows; layers with a window and leading dense ones turn; with a shared expert the mean counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.config import ModelConfig, architecture
from hotset.model.rules import Branch, Dense, LayerRule

if TYPE_CHECKING:
    from hotset.model.keys import Keys


@architecture("cohere2moe", "Command A with experts")
def config(keys: Keys) -> ModelConfig:
    slides = keys.sliding(4)
    experts = keys.experts(keys.router("sigmoid"))
    shared = keys.shared()

    def layer(i: int) -> LayerRule:
        is_dense = i < keys.n_dense
        rope = keys.rope("neighbours", swa=True) if slides[i] or is_dense else None
        branch = Branch((Dense(),) if is_dense else (experts, *shared), norm="", source="mixer input")
        return LayerRule(
            keys.attention(rope, i, swa=slides[i]),
            (branch,),
            feed_scale=1.0 if is_dense or not shared else 0.5,
        )

    centred = "attention.layer_norm_rms_epsilon" not in keys.arch
    return keys.model(layer, norm=keys.norm(centred=centred), logit_scale=keys.positive("logit_scale", 1.0))
