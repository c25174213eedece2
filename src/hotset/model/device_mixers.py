"""What mixes positions, on a GPU: launches over buffers made once; keys, values and states of the rows are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hotset.kernels.activation import Activation, quantise
from hotset.kernels.attention import attention
from hotset.kernels.latent import LatentRope, latent_attention, prepare_latent
from hotset.kernels.norm import rms_norm
from hotset.kernels.recurrent import convolve, delta_rule, gated_norm
from hotset.model.device_kv import span_of
from hotset.model.rules import Attention, DeltaNet, LatentAttention, ShortConvolution
from hotset.model.weights import AttentionWeights, ConvolutionWeights, DeltaWeights, LatentWeights

if TYPE_CHECKING:
    from hotset.kernels.rows import Rows
    from hotset.model.device_ops import DeviceOps
    from hotset.model.weights import Layer


def attend(
    ops: DeviceOps,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    gate: torch.Tensor | None,
    layer: Layer,
    rows: Rows,
) -> Activation:
    """See transformer.Ops: [m, n_heads * d_value]."""
    rule, w, kv = layer.rule.mixer, layer.mixer, ops.kv
    assert isinstance(rule, Attention)
    assert isinstance(w, AttentionWeights)
    v = ops.scratch.floats("values", *k.shape).copy_(k) if v is None else v
    if rule.clamp:
        for t in (q, k, v):
            t.clamp_(-rule.clamp, rule.clamp)
    if rule.qk_norm == "whole":
        for t, weight in ((q, w.q_norm), (k, w.k_norm)):
            whole = t[:, : len(weight)]
            rms_norm(whole, weight, Activation(whole), kv.eps)
    if w.v_norm is not None:
        heads = v.view(-1, rule.d_value)  # no padding: device_support.py sees to it
        rms_norm(heads, w.v_norm, Activation(heads), kv.eps)
    if rule.temperature is not None:
        warm(ops, q, kv.warmth(rule.temperature), rows)
    q = kv.turn_and_store(layer, rows, q, k, v)
    out = ops.scratch.activation("attended", len(q), rule.n_heads * rule.d_value)
    splits = kv.splits(rule.n_heads, rule.d_value)
    span = span_of(rule, w.sinks)
    attention(q, kv.keys_values(layer.index), rows, rule.score_scale, splits, out.f32, span)
    if gate is not None:
        gated(out.f32, gate, rule)
    quantise(out)
    return out


def warm(ops: DeviceOps, q: torch.Tensor, factors: torch.Tensor, rows: Rows) -> None:
    """Multiply queries by the factor of their position."""
    factor = ops.scratch.floats("warmth", len(q), 1)
    torch.index_select(factors, 0, rows.positions, out=factor)
    q.mul_(factor)


def gated(out: torch.Tensor, gate: torch.Tensor, rule: Attention) -> None:
    """Multiply out [m, n_heads * d_value] by the sigmoid or softplus of its gate, which has a value per element or per head."""
    whole = gate.shape[1] >= out.shape[1]
    width = out.shape[1] if whole else rule.n_heads
    values = gate[:, :width]
    if rule.gate == "softplus":
        torch.ops.aten.softplus.out(values, out=values)
    else:
        values.sigmoid_()
    heads = out.view(len(out), rule.n_heads, rule.d_value)
    heads.mul_(values.view(heads.shape) if whole else values.unsqueeze(-1))


def attend_latent(ops: DeviceOps, q: torch.Tensor, kv: torch.Tensor, layer: Layer, rows: Rows) -> Activation:
    """See transformer.Ops: [m, n_heads * d_value]."""
    rule, w, scratch = layer.rule.mixer, layer.mixer, ops.scratch
    assert isinstance(rule, LatentAttention)
    assert isinstance(w, LatentWeights)
    m, n, cache = len(q), rule.n_heads, ops.kv.latents(layer.index)
    plain = scratch.activation("plain heads", m * n, rule.d_nope, times=n)
    rotated = scratch.floats("turned heads", m * n, rule.d_rope, times=n)
    cos, sin = ops.kv.tables(rule.rope)
    neox = rule.rope is not None and rule.rope.pairs == "halves"
    if rule.temperature is not None:
        warm(ops, q, ops.kv.warmth(rule.temperature), rows)
    prepare_latent(q, kv, LatentRope(cos, sin, neox, w.kv_norm, ops.kv.eps), cache, rows, plain.f32, rotated)
    quantise(plain)
    met = ops.linear_stack(plain, w.k_up)
    latent = scratch.activation("latents", m * n, rule.kv_rank, times=n)
    splits = ops.kv.splits(n, rule.kv_rank)
    latent_attention(met, rotated, cache, rows, rule.scale, splits, latent.f32.view(m, n * rule.kv_rank))
    quantise(latent)
    values = ops.linear_stack(latent, w.v_up)
    out = scratch.activation("attended", m, n * rule.d_value)
    out.f32.view(m * n, rule.d_value).copy_(values[:, : rule.d_value])
    quantise(out)
    return out


def short_convolution(ops: DeviceOps, inner: torch.Tensor, layer: Layer, rows: Rows) -> Activation:
    """See transformer.Ops: [m, n_channels]."""
    rule, w = layer.rule.mixer, layer.mixer
    assert isinstance(rule, ShortConvolution)
    assert isinstance(w, ConvolutionWeights)
    out = ops.scratch.activation("attended", len(inner), rule.n_channels)
    (past,) = ops.kv.states[layer.index]
    convolve(inner, w.kernel, past, rows, out.f32, gated=True)
    quantise(out)
    return out


def delta_net(
    ops: DeviceOps,
    qkv: torch.Tensor,
    z: torch.Tensor,
    beta: torch.Tensor,
    alpha: torch.Tensor,
    layer: Layer,
    rows: Rows,
) -> Activation:
    """See transformer.Ops: [m, n_value_heads * d_value]."""
    rule, w = layer.rule.mixer, layer.mixer
    assert isinstance(rule, DeltaNet)
    assert isinstance(w, DeltaWeights)
    mixed = ops.scratch.floats("mixed", len(qkv), rule.n_channels)
    past, state = ops.kv.states[layer.index]
    convolve(qkv, w.kernel, past, rows, mixed, gated=False)
    out = ops.scratch.activation("attended", len(qkv), rule.value_width)
    delta_rule(
        mixed,
        beta,
        alpha,
        w.shift,
        w.decay,
        state,
        rows,
        out.f32,
        n_key_heads=rule.n_key_heads,
        interleaved=rule.interleaved,
        eps=ops.kv.eps,
    )
    gated_norm(out.f32, z, w.norm, ops.kv.eps)
    quantise(out)
    return out
