"""What the GPU kernels cannot compute yet, found out before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotset.model.rules import Activation, Attention, Branch, Experts, LayerRule

if TYPE_CHECKING:
    from hotset.model.config import ModelConfig
    from hotset.model.tensors import Tensors

# The kernels want rows in whole vectors.
WIDTH = 16


def missing_on_device(config: ModelConfig, tensors: Tensors) -> list[str]:
    """What of a model the GPU kernels do not know, in words; nothing where it runs."""
    found = {text for rule in config.layers for text in _missing_in_layer(config, rule)}
    if config.d_model % WIDTH:
        found.add(f"a width of {config.d_model}, which is no multiple of {WIDTH}")
    if config.norm.centred or any(name.endswith((".bias", ".scale")) for name in tensors.file.tensors):
        found.add("biases and scales")
    if config.embedding_scale != 1.0 or config.logit_scale != 1.0 or config.logit_softcap:
        found.add("scaled embeddings or logits")
    return sorted(found)


def _missing_in_layer(config: ModelConfig, rule: LayerRule) -> Iterator[str]:
    mixer = rule.mixer
    if not isinstance(mixer, Attention):
        yield "latent attention, convolutions or recurrences"
    elif mixer != Attention(
        mixer.n_heads, mixer.n_kv_heads, mixer.d_key, mixer.d_key, mixer.rope, qk_norm=mixer.qk_norm
    ):
        yield "this kind of attention"
    elif mixer != config.attention or mixer.qk_norm not in ("none", "head") or mixer.rope is None:
        yield "attention that differs by layer, or norms over the whole of q and k"
    elif mixer.rope.pairs != "halves":
        yield "rotation of neighbouring values"
    if rule != LayerRule(mixer, rule.feed, feed_post_norm=rule.feed_post_norm) or rule.feed_post_norm:
        yield "scaled residuals or norms after a step"
    part = rule.feed[0].parts[0] if rule.feed else None
    if not isinstance(part, Experts) or rule.feed != (Branch((part,), norm=rule.feed[0].norm),):
        yield "dense or shared feed-forward networks"
    elif part != Experts(part.router, part.d_expert) or part.activation != Activation():
        yield "this kind of experts"
    elif part.router.has_groups or part.router.scoring == "softmax of picks":
        yield "this kind of routing"
