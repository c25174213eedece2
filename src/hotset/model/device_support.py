"""What the GPU kernels cannot compute yet, and what of it their prompt kernels cannot, found out before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.model.rules import Attention, Branch, Experts, LayerRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hotset.model.config import ModelConfig
    from hotset.model.tensors import Tensors

# The kernels want rows in whole vectors.
WIDTH = 16


def missing_on_device(config: ModelConfig) -> list[str]:
    """What of a model the GPU kernels do not know, in words; nothing where it runs."""
    found = {text for rule in config.layers for text in _missing_in_layer(rule)}
    if config.d_model % WIDTH:
        found.add(f"a width of {config.d_model}, which is no multiple of {WIDTH}")
    return sorted(found)


def _missing_in_layer(rule: LayerRule) -> Iterator[str]:
    mixer = rule.mixer
    if isinstance(mixer, Attention):
        if mixer.unit_values and mixer.n_kv_heads * mixer.d_value % WIDTH:
            yield f"normed values whose width is no multiple of {WIDTH}"
        if mixer.norm_after_rope and mixer.rope is not None and mixer.rope.magnitude != 1.0:
            yield "norms after a rotation that stretches"
    if rule.experts and not rule.experts.gated:
        yield "experts without a gate"


def prompts_in_chunks(config: ModelConfig, tensors: Tensors) -> bool:
    """Whether the kernels for many rows of a prompt know the model; else prompts take the decode kernels, eight rows at a time."""
    plain = config.norm.centred is False and config.embedding_scale == config.logit_scale == 1.0
    has_extras = any(name.endswith((".bias", ".scale")) for name in tensors.file.tensors)
    return plain and not has_extras and not config.logit_softcap and all(_is_plain(rule) for rule in config.layers)


def _is_plain(rule: LayerRule) -> bool:
    """Attention over all positions with norms per head at most, and experts alone."""
    mixer, part = rule.mixer, rule.feed[0].parts[0] if rule.feed else None
    if not isinstance(mixer, Attention) or not isinstance(part, Experts):
        return False
    same = Attention(mixer.n_heads, mixer.n_kv_heads, mixer.d_key, mixer.d_key, mixer.rope, qk_norm=mixer.qk_norm)
    plain = LayerRule(same, (Branch((Experts(part.router, part.d_expert),), norm=rule.feed[0].norm),))
    return rule == plain and mixer.qk_norm in ("none", "head") and mixer.rope is not None
