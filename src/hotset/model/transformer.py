"""The forward pass, as the paper has it; where it runs is the business of the ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hotset.model.weights import Layer, Weights


class Ops(Protocol):
    """What a place can compute. Rows are float32 [m, n]; an activation also carries what fast mode made of it; `batch` says whose rows they are."""

    def embed(self, matrix: Any, batch: Any) -> Any:
        """Rows of the embedding, one per token of the batch."""

    def norm(self, x: Any, weight: Any) -> Any:
        """Activation x / rms(x) * weight."""

    def linear(self, a: Any, matrix: Any) -> Any:
        """Rows a W^T; columns past the matrix's rows are padding."""

    def add_linear(self, x: Any, a: Any, matrix: Any) -> Any:
        """Rows x + a W^T; x is overwritten."""

    def attend(self, q: Any, k: Any, v: Any, layer: Layer, batch: Any) -> Any:
        """Activation of softmax(q k^T / sqrt(d)) v over each row's own past, after norm and rotation of q and k, which are stored."""

    def route(self, logits: Any, layer: Layer, batch: Any) -> Any:
        """The picks and their weights."""

    def add_experts(self, x: Any, a: Any, picks: Any, layer: Layer, batch: Any) -> Any:
        """Rows x + the sum over picks of weight * expert(a), in the order of picks; x is overwritten."""

    def wanted(self, x: Any, batch: Any) -> Any:
        """The rows whose logits are asked for."""


def forward(ops: Ops, weights: Weights, batch: Any) -> Any:
    """Logits of the batch's wanted rows, float32 [n_wanted, >= n_vocab]; keys and values of all its rows are stored."""
    x = ops.embed(weights.embedding, batch)
    for layer in weights.layers:
        a = ops.norm(x, layer.attention_norm)
        q, k, v = (ops.linear(a, matrix) for matrix in (layer.q, layer.k, layer.v))
        attended = ops.attend(q, k, v, layer, batch)
        x = ops.add_linear(x, attended, layer.attention_output)
        a = ops.norm(x, layer.experts_norm)
        picks = ops.route(ops.linear(a, layer.router), layer, batch)
        x = ops.add_experts(x, a, picks, layer, batch)
    return ops.linear(ops.norm(ops.wanted(x, batch), weights.output_norm), weights.output)
