"""The forward pass, as the papers have it; where it runs is the business of the ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hotset.model.weights import (
    AttentionWeights,
    ConvolutionWeights,
    DenseWeights,
    LatentWeights,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hotset.model.config import ModelConfig
    from hotset.model.weights import BranchWeights, ExpertWeights, Layer, NormWeights, Weights


class Ops(Protocol):
    """What a place can compute. Rows are float32 [m, n]; an activation also carries what fast mode made of it; `batch` says whose rows they are."""

    config: ModelConfig

    def embed(self, matrix: Any, batch: Any) -> Any:
        """Rows of the embedding, one per token of the batch."""

    def norm(self, x: Any, norm: NormWeights) -> Any:
        """Activation of the normed rows; x may be wider than the norm."""

    def normed(self, x: Any, norm: NormWeights) -> Any:
        """The same as plain rows."""

    def activation(self, x: Any) -> Any:
        """Activation of rows as they are."""

    def linear(self, a: Any, matrix: Any) -> Any:
        """Rows a W^T + bias; columns past the matrix's rows are padding."""

    def add_linear(self, x: Any, a: Any, matrix: Any) -> Any:
        """Rows x + a W^T + bias; x is overwritten."""

    def zeros(self, x: Any) -> Any:
        """Rows of zeros, shaped as x, that stay until the next call."""

    def copy(self, x: Any) -> Any:
        """Rows x that stay as they are for the rest of the layer."""

    def add(self, x: Any, y: Any, scale: float) -> Any:
        """Rows x + scale y; x is overwritten."""

    def scale(self, x: Any, scale: float) -> Any:
        """Rows scale x; x is overwritten."""

    def attend(self, q: Any, k: Any, v: Any, gate: Any, layer: Layer, batch: Any) -> Any:
        """Activation of what each row attends to of its own past, by the layer's Attention rule; keys and values are stored.

        `v` None takes the keys, before norm and rotation; `gate` may be None.
        """

    def attend_latent(self, q: Any, kv: Any, layer: Layer, batch: Any) -> Any:
        """The same by the LatentAttention rule: q [m, n_heads * d_query], kv [m, kv_rank + d_rope]."""

    def convolve(self, inner: Any, layer: Layer, batch: Any) -> Any:
        """Activation of the ShortConvolution rule: inner [m, 3 n_channels] holds B, C and x."""

    def recur(self, qkv: Any, z: Any, beta: Any, alpha: Any, layer: Layer, batch: Any) -> Any:
        """Activation of the DeltaNet rule."""

    def hidden(self, gate: Any, up: Any, part: DenseWeights, row_gate: Any) -> Any:
        """Activation of a feed-forward network's hidden values; gate and row_gate may be None."""

    def route(self, logits: Any, experts: ExpertWeights, batch: Any) -> Any:
        """The picks and their weights."""

    def add_experts(self, x: Any, a: Any, picks: Any, experts: ExpertWeights, batch: Any) -> Any:
        """Rows x + the sum over picks of weight * expert(a), in the order of picks; x is overwritten."""

    def wanted(self, x: Any, batch: Any) -> Any:
        """The rows whose logits are asked for."""

    def logits(self, a: Any, matrix: Any) -> Any:
        """Rows a W^T + bias, scaled and bounded as the model has it."""


def forward(ops: Any, weights: Weights, batch: Any) -> Any:
    """Logits of the batch's wanted rows, float32 [n_wanted, >= n_vocab]; keys, values and states of all its rows are stored; `ops` as in Ops."""
    x = ops.embed(weights.embedding, batch)
    if ops.config.embedding_scale != 1.0:
        x = ops.scale(x, ops.config.embedding_scale)
    for layer in weights.layers:
        x = _layer(ops, layer, x, batch)
    return ops.logits(ops.norm(ops.wanted(x, batch), weights.output_norm), weights.output)


def _layer(ops: Ops, layer: Layer, x: Any, batch: Any) -> Any:
    rule = layer.rule
    given = ops.copy(x) if layer.keeps_input else None
    picks = None
    if early := layer.early_router:
        picks = ops.route(ops.linear(ops.activation(x), early.router), early, batch)
    a = None
    if layer.mixer is not None:
        a = mixer_input = ops.norm(x, layer.mixer_norm) if layer.mixer_norm else ops.activation(x)
        plain = layer.mixer_post_norm is None
        x = _added(
            ops,
            x,
            lambda y: _mixed(ops, y, mixer_input, layer, batch),
            layer.mixer_post_norm,
            1.0,
            rule.residual_scale,
            plain,
        )
    if layer.feed:
        inputs = {"residual": x, "layer input": given, "mixer input": a}
        plain = layer.feed_post_norm is None and len(layer.feed) == 1 and layer.feed[0].post_norm is None
        x = _added(
            ops,
            x,
            lambda y: _fed(ops, y, inputs, picks, layer, batch),
            layer.feed_post_norm,
            rule.feed_scale,
            rule.residual_scale,
            plain,
        )
    return ops.scale(x, layer.output_scale) if layer.output_scale != 1.0 else x


def _added(
    ops: Ops,
    x: Any,
    compute: Callable[[Any], Any],
    post_norm: NormWeights | None,
    scale: float,
    residual_scale: float,
    plain: bool,
) -> Any:
    """Rows x + residual_scale * post_norm(scale * f(input)), where compute(y) is y + f(input): straight into x where nothing is between."""
    if plain and scale == residual_scale == 1.0:
        return compute(x)
    y = compute(ops.zeros(x))
    if scale != 1.0:
        y = ops.scale(y, scale)
    if post_norm is not None:
        y = ops.normed(y, post_norm)
    return ops.add(x, y, residual_scale)


def _mixed(ops: Ops, y: Any, a: Any, layer: Layer, batch: Any) -> Any:
    w = layer.mixer
    if isinstance(w, AttentionWeights):
        q, k = ops.linear(a, w.q), ops.linear(a, w.k)
        v = None if w.v is None else ops.linear(a, w.v)
        gate = None if w.gate is None else ops.linear(a, w.gate)
        mixed = ops.attend(q, k, v, gate, layer, batch)
    elif isinstance(w, LatentWeights):
        kv = ops.linear(a, w.kv_down)
        narrow = a if w.q_norm is None else ops.norm(ops.linear(a, w.q_down), w.q_norm)
        mixed = ops.attend_latent(ops.linear(narrow, w.q), kv, layer, batch)
    elif isinstance(w, ConvolutionWeights):
        mixed = ops.convolve(ops.linear(a, w.inner), layer, batch)
    else:
        assert w is not None
        qkv, z, beta, alpha = (ops.linear(a, matrix) for matrix in (w.qkv, w.z, w.beta, w.alpha))
        mixed = ops.recur(qkv, z, beta, alpha, layer, batch)
    return ops.add_linear(y, mixed, w.output)


def _fed(ops: Ops, y: Any, inputs: dict[str, Any], picks: Any, layer: Layer, batch: Any) -> Any:
    for branch in layer.feed:
        if branch.post_norm is None:
            y = _branch(ops, y, inputs, picks, branch, batch)
        else:
            z = _branch(ops, ops.zeros(inputs["residual"]), inputs, picks, branch, batch)
            y = ops.add(y, ops.normed(z, branch.post_norm), 1.0)
    return y


def _branch(ops: Ops, y: Any, inputs: dict[str, Any], picks: Any, branch: BranchWeights, batch: Any) -> Any:
    """Rows y + the sum of the branch's parts; y is overwritten."""
    rows = inputs[branch.rule.source]
    for part in branch.parts:
        if not isinstance(part, DenseWeights) and part.router_scale is not None:
            picks = ops.route(ops.linear(ops.norm(rows, part.router_scale), part.router), part, batch)
    a = rows if branch.norm is None else ops.norm(rows, branch.norm)
    for part in branch.parts:
        if isinstance(part, DenseWeights):
            y = _dense(ops, y, a, part)
        else:
            chosen = picks or ops.route(ops.linear(a, part.router), part, batch)
            y = ops.add_experts(y, a, chosen, part, batch)
    return y


def _dense(ops: Ops, y: Any, a: Any, part: DenseWeights) -> Any:
    gate = None if part.gate is None else ops.linear(a, part.gate)
    up = ops.linear(a, part.up)
    row_gate = None if part.row_gate is None else ops.linear(a, part.row_gate)
    return ops.add_linear(y, ops.hidden(gate, up, part, row_gate), part.down)
