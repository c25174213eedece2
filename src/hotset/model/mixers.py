"""The weights of what mixes positions: attention of all kinds, convolutions, recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotset.model.rules import Attention, DeltaNet, LatentAttention, ShortConvolution
from hotset.model.weights import (
    AttentionWeights,
    ConvolutionWeights,
    DeltaWeights,
    LatentWeights,
    MixerWeights,
)
from hotset.quant.f32 import F32
from hotset.quant.layout import MatrixLayout

if TYPE_CHECKING:
    from hotset.model.loading import Loader
    from hotset.model.rules import Mixer


def load_mixer(loader: Loader, rule: Mixer | None) -> MixerWeights | None:
    """The weights of a layer's mixer."""
    if isinstance(rule, Attention):
        return _attention(loader, rule)
    if isinstance(rule, LatentAttention):
        return _latent(loader, rule)
    if isinstance(rule, ShortConvolution):
        return _convolution(loader, rule)
    return _delta(loader, rule) if isinstance(rule, DeltaNet) else None


def _attention(loader: Loader, rule: Attention) -> AttentionWeights:
    d = loader.config.d_model
    n_q, n_k, n_v = rule.n_heads * rule.d_key, rule.n_kv_heads * rule.d_key, rule.n_kv_heads * rule.d_value
    gate = None
    if loader.has("attn_qkv.weight"):
        q, k, v = loader.split("attn_qkv", d, _runs(n_q, n_k, n_v))
    else:
        if rule.gate == "query":  # each head's values are followed by those of its gate
            halves = np.arange(2 * n_q).reshape(rule.n_heads, 2, rule.d_key)
            q, gate = loader.split("attn_q", d, [halves[:, 0].ravel(), halves[:, 1].ravel()])
        else:
            q = loader.matrix("attn_q", n_q, d)
        k = loader.matrix("attn_k", n_k, d)
        v = None if rule.keys_are_values and not loader.has("attn_v.weight") else loader.matrix("attn_v", n_v, d)
    if rule.gate in ("sigmoid", "softplus"):
        gate = loader.matrix("attn_gate", loader.tensors.n_rows(f"{loader.prefix}attn_gate.weight"), d)
    q_norm, k_norm = _head_norms(loader, rule)
    return AttentionWeights(
        q=q,
        k=k,
        v=v,
        output=loader.matrix("attn_output", d, rule.n_heads * rule.d_value),
        q_norm=q_norm,
        k_norm=k_norm,
        v_norm=_ones(loader, rule.d_value) if rule.unit_values else None,
        gate=gate,
        sinks=loader.maybe_vector("attn_sinks.weight", rule.n_heads) if rule.sinks else None,
    )


def _head_norms(loader: Loader, rule: Attention) -> tuple[Any, Any]:
    """What q and k are normed with, None without a norm."""
    if rule.qk_norm == "none" or (rule.norm_optional and not loader.has("attn_q_norm.weight")):
        return None, None
    if rule.qk_norm == "unit":
        return _ones(loader, rule.d_key), _ones(loader, rule.d_key)
    n_q, n_k = (rule.n_heads, rule.n_kv_heads) if rule.qk_norm == "whole" else (1, 1)
    return (
        loader.vector("attn_q_norm.weight", n_q * rule.d_key),
        loader.vector("attn_k_norm.weight", n_k * rule.d_key),
    )


def _ones(loader: Loader, n: int) -> Any:
    return loader.place.vector(np.ones(n, np.float32))


def _runs(*sizes: int) -> list[NDArray[np.int64]]:
    """Row numbers of parts that follow each other."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def _latent(loader: Loader, rule: LatentAttention) -> LatentWeights:
    d, n, rank = loader.config.d_model, rule.n_heads, rule.kv_rank
    k_up, v_up = _latent_heads(loader, rule)
    return LatentWeights(
        q_down=loader.matrix("attn_q_a", rule.q_rank, d) if rule.q_rank else None,
        q_norm=loader.norm("attn_q_a_norm", rule.q_rank) if rule.q_rank else None,
        q=loader.matrix("attn_q_b", n * rule.d_query, rule.q_rank)
        if rule.q_rank
        else loader.matrix("attn_q", n * rule.d_query, d),
        kv_down=loader.matrix("attn_kv_a_mqa", rank + rule.d_rope, d),
        kv_norm=loader.vector("attn_kv_a_norm.weight", rank),
        k_up=k_up,
        v_up=v_up,
        output=loader.matrix("attn_output", d, n * rule.d_value),
    )


def _latent_heads(loader: Loader, rule: LatentAttention) -> tuple[Any, Any]:
    """The matrices of each head between latents and keys or values; older files hold them as one, keys not yet transposed."""
    n, rank = rule.n_heads, rule.kv_rank
    if loader.has("attn_k_b.weight"):
        return loader.stack("attn_k_b", n, rank, rule.d_nope), loader.stack("attn_v_b", n, rule.d_value, rank)
    both = loader.values("attn_kv_b.weight", (n * (rule.d_nope + rule.d_value), rank))
    heads = both.reshape(n, rule.d_nope + rule.d_value, rank)
    keys = np.ascontiguousarray(heads[:, : rule.d_nope].transpose(0, 2, 1))
    values = np.ascontiguousarray(heads[:, rule.d_nope :])

    def placed(stack: NDArray[np.float32]) -> Any:
        return loader.place.matrix(MatrixLayout(F32, *stack.shape[1:]), stack.reshape(-1).view(np.uint8), n=n)

    return placed(keys), placed(values)


def _convolution(loader: Loader, rule: ShortConvolution) -> ConvolutionWeights:
    d, n = loader.config.d_model, rule.n_channels
    return ConvolutionWeights(
        inner=loader.matrix("shortconv.in_proj", 3 * n, d),
        kernel=loader.vector("shortconv.conv.weight", (n, rule.width)),
        output=loader.matrix("shortconv.out_proj", d, n),
    )


def _delta(loader: Loader, rule: DeltaNet) -> DeltaWeights:
    d, n = loader.config.d_model, rule.n_value_heads
    if loader.has("ssm_in.weight"):  # older files: q, k, v and z of each key head side by side
        qkv, z = loader.split("ssm_in", d, _by_key_head(rule))
    else:
        qkv, z = loader.matrix("attn_qkv", rule.n_channels, d), loader.matrix("attn_gate", rule.value_width, d)
    if loader.has("ssm_ba.weight"):  # beta and alpha of each key head side by side
        pairs = np.arange(2 * n).reshape(rule.n_key_heads, 2, -1)
        beta, alpha = loader.split("ssm_ba", d, [pairs[:, 0].ravel(), pairs[:, 1].ravel()])
    else:
        beta, alpha = loader.matrix("ssm_beta", n, d), loader.matrix("ssm_alpha", n, d)
    return DeltaWeights(
        qkv=qkv,
        z=z,
        beta=beta,
        alpha=alpha,
        kernel=loader.vector("ssm_conv1d.weight", (rule.n_channels, rule.width)),
        decay=loader.vector("ssm_a", n),
        shift=loader.vector("ssm_dt.bias", n),
        norm=loader.vector("ssm_norm.weight", rule.d_value),
        output=loader.matrix("ssm_out", d, rule.value_width),
    )


def _by_key_head(rule: DeltaNet) -> list[NDArray[np.int64]]:
    """Rows of qkv and of z in a matrix that holds, for each key head, q, k, and v and z of its value heads."""
    shared = rule.value_width // rule.n_key_heads
    sizes = (rule.d_key, rule.d_key, shared, shared)
    rows = np.arange(sum(sizes) * rule.n_key_heads).reshape(rule.n_key_heads, -1)
    q, k, v, z = (part.ravel() for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1))
    return [np.concatenate([q, k, v]), z]
