"""Qwen3-MoE: grouped-query attention with a norm on each head's q and k; every layer picks experts by softmax, weights renormalised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.errors import FileError, UnsupportedError
from hotset.model.config import ModelConfig, Rope, architecture
from hotset.model.routing import RouterRule

if TYPE_CHECKING:
    from hotset.gguf import Metadata


@architecture("qwen3moe")
def config(metadata: Metadata) -> ModelConfig:
    """Read the config; keys as llama.cpp writes them."""
    arch = metadata.arch
    n_heads = _count(arch, "attention.head_count")
    d_model = _count(arch, "embedding_length")
    n_kv_heads = _count(arch, "attention.head_count_kv", n_heads)
    d_head = _count(arch, "attention.key_length", d_model // n_heads)
    if n_heads % n_kv_heads:
        raise FileError(
            metadata.path, "attention.head_count_kv", f"{n_kv_heads} does not divide {n_heads} heads", value=n_kv_heads
        )
    if (value_length := arch.int("attention.value_length", d_head)) != d_head:
        raise UnsupportedError(
            metadata.path,
            "attention.value_length",
            f"{value_length} differs from the key length {d_head}",
            value=value_length,
            hint="this version wants keys and values of one width",
        )
    n_experts = _count(arch, "expert_count")
    n_picks = _count(arch, "expert_used_count")
    if n_picks > n_experts:
        raise FileError(metadata.path, "expert_used_count", f"{n_picks} picks of {n_experts} experts", value=n_picks)
    return ModelConfig(
        architecture="qwen3moe",
        name=metadata.str("general.name", metadata.path.stem),
        n_layers=_count(arch, "block_count"),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_expert=_count(arch, "expert_feed_forward_length"),
        n_vocab=_vocabulary(metadata),
        n_ctx_train=_count(arch, "context_length"),
        norm_eps=_epsilon(arch),
        rope=_rope(metadata, d_head),
        router=RouterRule(
            n_experts=n_experts,
            n_picks=n_picks,
            renormalise=arch.bool("expert_weights_norm", True),
            scale=arch.float("expert_weights_scale", 1.0),
        ),
    )


def _count(arch: Metadata, key: str, default: int | None = None) -> int:
    value = arch.int(key) if default is None else arch.int(key, default)
    if not 1 <= value < 2**31:
        raise FileError(arch.path, key, f"is {value}, which is no count", value=value)
    return value


def _epsilon(arch: Metadata) -> float:
    key = "attention.layer_norm_rms_epsilon"
    value = arch.float(key)
    if not 0 <= value < 1:
        raise FileError(arch.path, key, f"is {value:g}, which is no small positive number", value=value)
    return value


def _vocabulary(metadata: Metadata) -> int:
    if "tokenizer.ggml.tokens" in metadata:
        return len(metadata["tokenizer.ggml.tokens"])
    return _count(metadata.arch, "vocab_size")


def _rope(metadata: Metadata, d_head: int) -> Rope:
    arch = metadata.arch
    kind = arch.str("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedError(
            metadata.path,
            "rope.scaling.type",
            f"{kind!r} is not supported",
            value=kind,
            hint="this version knows none and linear",
        )
    n_rotated = _count(arch, "rope.dimension_count", d_head)
    if n_rotated > d_head or n_rotated % 2:
        raise FileError(metadata.path, "rope.dimension_count", f"{n_rotated} of {d_head} dimensions", value=n_rotated)
    factor = arch.float("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    theta = arch.float("rope.freq_base", 10000.0)
    if not (factor > 0 and theta > 0):
        raise FileError(
            metadata.path, "rope.freq_base", f"theta {theta}, factor {factor}: both must be positive", value=theta
        )
    return Rope(theta=theta, n_rotated=n_rotated, factor=factor)
