"""What mixes positions, on the CPU: rows in, rows out; keys, values and states of the rows are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotset.host.attention import prepare_heads
from hotset.host.recurrent import convolve, delta_rule, unit_heads
from hotset.model.rules import Attention, DeltaNet, LatentAttention, ShortConvolution
from hotset.model.weights import AttentionWeights, ConvolutionWeights, DeltaWeights, LatentWeights

if TYPE_CHECKING:
    from hotset.model.batch import Batch
    from hotset.model.host_ops import HostOps
    from hotset.model.weights import Layer

Rows = NDArray[np.float32]
NOTHING = np.empty(0, np.float32)


def attend(ops: HostOps, q: Rows, k: Rows, v: Rows | None, gate: Rows | None, layer: Layer, batch: Batch) -> Rows:
    """See transformer.Ops: [m, n_heads * d_value]."""
    rule, w = layer.rule.mixer, layer.mixer
    assert isinstance(rule, Attention)
    assert isinstance(w, AttentionWeights)
    kv, eps, positions = ops.kv.layer(layer.index), ops.config.norm.eps, batch.positions
    v = k.copy() if v is None else v
    if rule.clamp:
        for rows in (q, k, v):
            np.clip(rows, -rule.clamp, rule.clamp, out=rows)
    tables = ops.kv.tables(rule.rope)
    neighbours = rule.rope is not None and rule.rope.pairs == "neighbours"
    for rows, weight, n in ((q, w.q_norm, rule.n_heads), (k, w.k_norm, rule.n_kv_heads)):
        prepare_heads(
            rows, NOTHING if weight is None else weight, eps, positions, tables, n, rule.d_key,
            neighbours=neighbours, norm_last=rule.norm_after_rope,
        )  # fmt: skip
    if w.v_norm is not None:
        prepare_heads(v, w.v_norm, eps, positions, ops.kv.tables(None), rule.n_kv_heads, rule.d_value)
    if rule.temperature:
        q *= rule.temperature.factors(positions)
    kv.store(batch, k, v)
    out = np.empty((batch.n_rows, rule.n_heads * rule.d_value), np.float32)
    sinks = NOTHING if w.sinks is None else w.sinks
    kv.attend(
        q, first_seen(rule, positions), positions, batch.sequences, rule.score_scale, rule.softcap, sinks,
        rule.d_key, rule.d_value, rule.n_heads, out,
    )  # fmt: skip
    return out if gate is None else gated(out, gate, rule)


def first_seen(rule: Attention, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first position that each row attends to."""
    if rule.window:
        return np.maximum(positions - rule.window + 1, 0)
    return positions // rule.chunk * rule.chunk if rule.chunk else np.zeros_like(positions)


def gated(out: Rows, gate: Rows, rule: Attention) -> Rows:
    """Rows times the sigmoid or softplus of their gate, which has a value per element or per head."""
    heads = out.reshape(len(out), rule.n_heads, rule.d_value)
    whole = gate.shape[1] >= out.shape[1]
    values = gate[:, : out.shape[1]].reshape(heads.shape) if whole else gate[:, : rule.n_heads, None]
    factor = np.logaddexp(np.float32(0), values) if rule.gate == "softplus" else 1 / (1 + np.exp(-values))
    return np.asarray(heads * factor, np.float32).reshape(out.shape)


def attend_latent(ops: HostOps, q: Rows, kv: Rows, layer: Layer, batch: Batch) -> Rows:
    """See transformer.Ops: [m, n_heads * d_value]."""
    rule, w = layer.rule.mixer, layer.mixer
    assert isinstance(rule, LatentAttention)
    assert isinstance(w, LatentWeights)
    eps, positions, m, n = ops.config.norm.eps, batch.positions, batch.n_rows, rule.n_heads
    tables = ops.kv.tables(rule.rope)
    neighbours = rule.rope is not None and rule.rope.pairs == "neighbours"
    stored = np.ascontiguousarray(kv[:, : rule.d_stored])
    prepare_heads(
        stored, NOTHING, eps, positions, tables, 1, rule.d_stored, start=rule.kv_rank, neighbours=neighbours
    )  # fmt: skip
    prepare_heads(stored, w.kv_norm, eps, positions, ops.kv.tables(None), 1, rule.kv_rank)
    prepare_heads(q, NOTHING, eps, positions, tables, n, rule.d_query, start=rule.d_nope, neighbours=neighbours)
    ops.kv.layer(layer.index).store(batch, stored)
    heads = q[:, : n * rule.d_query].reshape(m * n, rule.d_query)
    met = ops.linear_stack(ops.activation(np.ascontiguousarray(heads[:, : rule.d_nope])), w.k_up)
    query = np.concatenate([met[:, : rule.kv_rank], heads[:, rule.d_nope :]], 1).reshape(m, n * rule.d_stored)
    if rule.temperature:
        query *= rule.temperature.factors(positions)
    latent = np.empty((m, n * rule.kv_rank), np.float32)
    ops.kv.layer(layer.index).attend(
        query, np.zeros_like(positions), positions, batch.sequences, rule.scale, 0.0, NOTHING,
        rule.d_stored, rule.kv_rank, n, latent,
    )  # fmt: skip
    values = ops.linear_stack(ops.activation(latent.reshape(m * n, rule.kv_rank)), w.v_up)
    return np.ascontiguousarray(values[:, : rule.d_value]).reshape(m, n * rule.d_value)


def short_convolution(ops: HostOps, inner: Rows, layer: Layer, batch: Batch) -> Rows:
    """See transformer.Ops: [m, n_channels]."""
    rule, w = layer.rule.mixer, layer.mixer
    assert isinstance(rule, ShortConvolution)
    assert isinstance(w, ConvolutionWeights)
    n = rule.n_channels
    b, c, x = (inner[:, i * n : (i + 1) * n] for i in range(3))
    out = np.empty((batch.n_rows, n), np.float32)
    (state,) = ops.kv.states[layer.index]
    convolve(b * x, w.kernel, NOTHING, False, state, batch.positions, batch.sequences, out)
    return c * out


def delta_net(ops: HostOps, qkv: Rows, z: Rows, beta: Rows, alpha: Rows, layer: Layer, batch: Batch) -> Rows:
    """See transformer.Ops: [m, n_value_heads * d_value]."""
    rule, w = layer.rule.mixer, layer.mixer
    assert isinstance(rule, DeltaNet)
    assert isinstance(w, DeltaWeights)
    m, n, eps, where = batch.n_rows, rule.n_value_heads, ops.config.norm.eps, (batch.positions, batch.sequences)
    past, state = ops.kv.states[layer.index]
    mixed = np.empty((m, rule.n_channels), np.float32)
    convolve(qkv, w.kernel, NOTHING, True, past, *where, mixed)
    parts = np.split(mixed, [rule.key_width, 2 * rule.key_width], axis=1)
    q, k, v = (np.ascontiguousarray(part) for part in parts)
    for rows in (q, k):
        unit_heads(rows, rule.n_key_heads, rule.d_key, eps)
    weight = 1 / (1 + np.exp(-beta[:, :n]))
    decay = np.exp(np.logaddexp(np.float32(0), alpha[:, :n] + w.shift) * w.decay)
    out = np.empty((m, rule.value_width), np.float32)
    delta_rule(q, k, v, weight, decay, n // rule.n_key_heads, rule.interleaved, state, *where, out)
    prepare_heads(out, w.norm, eps, batch.positions, ops.kv.tables(None), n, rule.d_value)
    gate = z[:, : rule.value_width]
    return np.asarray(out * (gate / (1 + np.exp(-gate))), np.float32)
