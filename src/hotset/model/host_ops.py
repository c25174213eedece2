"""The ops on the CPU: Numba kernels over weights in planes; experts are computed where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotset.host import dot
from hotset.host import router as host_router
from hotset.host.activation import Activation, hidden_values, quantized, rms_norm, shifted_norm, swiglu
from hotset.host.matmul import grouped_matmul
from hotset.host.router import by_expert, combine, route_rows
from hotset.model import host_mixers
from hotset.model.batch import MAX_ROWS
from hotset.model.host_place import HostMatrix

if TYPE_CHECKING:
    from hotset.experts.bank import ExpertBank
    from hotset.experts.host_cache import HostCache
    from hotset.model.batch import Batch
    from hotset.model.config import ModelConfig
    from hotset.model.host_kv import HostKV
    from hotset.model.rules import Activation as ActivationRule
    from hotset.model.weights import DenseWeights, ExpertWeights, Layer, NormWeights
    from hotset.quant.layout import MatrixLayout

Rows = NDArray[np.float32]
Picks = tuple[NDArray[np.int32], Rows]
NOTHING = np.empty(0, np.float32)
SCORINGS = {
    "softmax": host_router.SOFTMAX, "sigmoid": host_router.SIGMOID, "softmax of picks": host_router.SOFTMAX_OF_PICKS
}  # fmt: skip
KINDS = {"silu": 0, "gelu": 1, "relu": 2, "relu squared": 3, "swiglu oai": 4}


@dataclass(frozen=True, eq=False)
class HostRouting:
    """Recorded picks in the router's place: `trace` int16 [tokens, layers with experts, k]; position 0 of a sequence is token `offsets` int64 [n_seqs]."""

    trace: NDArray[np.int16]
    offsets: NDArray[np.int64]


class HostOps:
    """See transformer.Ops. `fast` takes int8 products where the format has them; else all is float32."""

    def __init__(self, config: ModelConfig, bank: ExpertBank, cache: HostCache, kv: HostKV, *, fast: bool) -> None:
        self.config = config
        self.bank = bank
        self.cache = cache
        self.kv = kv
        self.fast = fast
        self.routing: HostRouting | None = None

    def embed(self, matrix: HostMatrix, batch: Batch) -> Rows:
        return matrix.layout.dequantize_rows(matrix.data, batch.tokens)

    def norm(self, x: Rows, norm: NormWeights) -> Activation:
        rule, n = self.config.norm, norm.weight.size
        x = x if x.shape[1] == n else np.ascontiguousarray(x[:, :n])
        if norm.bias is None and not rule.centred:
            return rms_norm(x, norm.weight, rule.eps, integers=self.fast)
        bias = NOTHING if norm.bias is None else norm.bias
        return shifted_norm(x, norm.weight, bias, rule.eps, centred=rule.centred, integers=self.fast)

    def normed(self, x: Rows, norm: NormWeights) -> Rows:
        return self.norm(x, norm).f

    def activation(self, x: Rows) -> Activation:
        return quantized(x, integers=self.fast)

    def linear(self, a: Activation, matrix: HostMatrix) -> Rows:
        rows = np.arange(a.n_rows)
        out = self._multiply(a, matrix.layout, matrix.address, np.array([0, a.n_rows]), rows, rows)
        if matrix.scale != 1.0:
            out *= np.float32(matrix.scale)
        if matrix.bias is not None:
            out[:, : matrix.bias.size] += matrix.bias
        return out

    def linear_stack(self, a: Activation, matrix: HostMatrix) -> Rows:
        """Rows [m * n, padded rows]: row r * n + i is matrix i of n times row r * n + i of `a`."""
        n = matrix.address.size
        m = a.n_rows // n
        rows = np.arange(n * m).reshape(m, n).T.ravel()  # all rows of the first matrix, then of the second
        return self._multiply(a, matrix.layout, matrix.address, np.arange(n + 1) * m, rows, rows)

    def add_linear(self, x: Rows, a: Activation, matrix: HostMatrix) -> Rows:
        x += self.linear(a, matrix)[:, : x.shape[1]]
        return x

    def _multiply(
        self, a: Activation, layout: MatrixLayout, addresses: Any, starts: Any, x_rows: Any, out_rows: Any
    ) -> Rows:
        out = np.empty((out_rows.size, layout.padded_rows), np.float32)
        if not out_rows.size:  # a chunk of a prompt whose logits nobody wants: no kernel is compiled for it
            return out
        integer = a.has_integers and layout.fmt.integer
        multiply = grouped_matmul(layout.fmt.ggml_type, dot.INTEGER if integer else dot.FLOAT)
        multiply(
            addresses, starts, x_rows, out_rows, layout.n_groups, layout.n_blocks, a.f, a.q, a.d, a.m, a.h, out
        )  # fmt: skip
        return out

    def zeros(self, x: Rows) -> Rows:
        return np.zeros_like(x)

    def copy(self, x: Rows) -> Rows:
        return x.copy()

    def add(self, x: Rows, y: Rows, scale: float) -> Rows:
        x += y if scale == 1.0 else y * np.float32(scale)
        return x

    def scale(self, x: Rows, scale: float) -> Rows:
        x *= np.float32(scale)
        return x

    def attend(self, q: Rows, k: Rows, v: Rows | None, gate: Rows | None, layer: Layer, batch: Batch) -> Activation:
        return self.activation(host_mixers.attend(self, q, k, v, gate, layer, batch))

    def attend_latent(self, q: Rows, kv: Rows, layer: Layer, batch: Batch) -> Activation:
        return self.activation(host_mixers.attend_latent(self, q, kv, layer, batch))

    def convolve(self, inner: Rows, layer: Layer, batch: Batch) -> Activation:
        return self.activation(host_mixers.short_convolution(self, inner, layer, batch))

    def recur(self, qkv: Rows, z: Rows, beta: Rows, alpha: Rows, layer: Layer, batch: Batch) -> Activation:
        return self.activation(host_mixers.delta_net(self, qkv, z, beta, alpha, layer, batch))

    def hidden(self, gate: Rows | None, up: Rows, part: DenseWeights, row_gate: Rows | None) -> Activation:
        n = part.down.layout.cols
        if row_gate is None:
            return self._hidden(gate, up, n, part.rule.activation)
        share = np.asarray(1 / (1 + np.exp(-row_gate[:, :1])), np.float32)
        return self.activation(self._hidden(gate, up, n, part.rule.activation).f * share)

    def _hidden(self, gate: Rows | None, up: Rows, n: int, rule: ActivationRule) -> Activation:
        if gate is not None and rule.kind == "silu" and rule.limit == 0:
            return swiglu(gate, up, n, integers=self.fast)
        first = up if gate is None else gate
        values = hidden_values(first, up, n, KINDS[rule.kind], gated=gate is not None, limit=rule.limit)
        return self.activation(values)

    def route(self, logits: Rows, experts: ExpertWeights, batch: Batch) -> Picks:
        rule = experts.rule.router
        if self.routing is not None:
            trace, offsets = self.routing.trace, self.routing.offsets
            tokens = (batch.positions + offsets[batch.sequences]) % len(trace)
            picks = trace[tokens, experts.index].astype(np.int32)
            return picks, np.full(picks.shape, 1 / rule.n_picks, np.float32)
        picks = np.empty((len(logits), rule.n_picks), np.int32)
        weights = np.empty((len(logits), rule.n_picks), np.float32)
        route_rows(
            logits, NOTHING if experts.selection_bias is None else experts.selection_bias, SCORINGS[rule.scoring], rule.renormalise,
            rule.scale, (rule.n_groups, rule.n_groups_used, rule.n_summed), picks, weights, rule.n_experts,
        )  # fmt: skip
        return picks, weights

    def add_experts(self, x: Rows, a: Activation, picks: Picks, experts: ExpertWeights, batch: Batch) -> Rows:
        chosen, weights = picks
        for i in range(0, batch.n_rows, MAX_ROWS):  # the policy sees prompts as the GPU's decode kernels do
            some = slice(i, i + MAX_ROWS)
            self.cache.lookup(experts.index, chosen[some], batch.row_mask[some], weights[some])
        rule, d = experts.rule, self.config.d_model
        if rule.weights_on_input:
            k = chosen.shape[1]
            a = self.activation(np.repeat(a.f, k, axis=0) * weights.reshape(-1, 1))
            weights = np.ones_like(weights)
        order = by_expert(chosen.reshape(-1), rule.router.n_experts)
        if experts.down_scale is not None:
            weights = weights * experts.down_scale[chosen]
        x += combine(self._expert_rows(a, chosen, experts, order), weights, d)
        return x

    def _expert_rows(self, a: Activation, chosen: Any, experts: ExpertWeights, order: Any) -> Rows:
        """What each pick's expert makes of its row: [pairs, padded d_model]."""
        span, rule, (ids, starts, pairs) = experts.span, experts.rule, order
        spans = self.bank.base[experts.index] + ids * span.n_bytes
        rows = pairs if rule.weights_on_input else pairs // chosen.shape[1]
        down = span.matrix("down")
        gate, up = self._gate_up(a, experts, spans, starts, rows, pairs)
        flat = chosen.reshape(-1)
        gate = _scaled_and_shifted(gate, experts.gate_scale, experts.gate_bias, flat)
        up = _scaled_and_shifted(up, experts.up_scale, experts.up_bias, flat)
        hidden = self._hidden(gate, up, down.cols, rule.activation)
        z = self._multiply(hidden, down, spans + span.start("down"), starts, pairs, pairs)
        if experts.down_bias is not None:
            z[:, : down.rows] += experts.down_bias[flat]
        return z

    def _gate_up(
        self, a: Activation, experts: ExpertWeights, spans: Any, starts: Any, rows: Any, pairs: Any
    ) -> tuple[Rows | None, Rows]:
        """Gate and up of every pair [pairs, d_expert]; one launch for both where their formats agree, for each one joins all threads."""
        span, n = experts.span, pairs.size
        up, at_up = span.matrix("up"), spans + span.start("up")
        if not experts.rule.gated:
            return None, self._multiply(a, up, at_up, starts, rows, pairs)
        gate, at_gate = span.matrix("gate"), spans + span.start("gate")
        if gate.fmt is not up.fmt:
            return self._multiply(a, gate, at_gate, starts, rows, pairs), self._multiply(
                a, up, at_up, starts, rows, pairs
            )
        both = self._multiply(
            a,
            gate,
            np.concatenate([at_gate, at_up]),
            np.concatenate([starts, starts[1:] + n]),
            np.concatenate([rows, rows]),
            np.concatenate([pairs, pairs + n]),
        )
        return both[:n], both[n:]

    def wanted(self, x: Rows, batch: Batch) -> Rows:
        return x[batch.wanted]

    def logits(self, a: Activation, matrix: HostMatrix) -> Rows:
        out = self.linear(a, matrix)
        if self.config.logit_scale != 1.0:
            out *= np.float32(self.config.logit_scale)
        if cap := np.float32(self.config.logit_softcap):
            out = np.tanh(out / cap) * cap
        return out


def _scaled_and_shifted(rows: Any, scale: Rows | None, bias: Rows | None, experts: Any) -> Any:
    """Rows of pairs times their expert's scale plus its bias, where there are such."""
    if scale is not None:
        rows = rows * scale[experts][:, None]
    if bias is not None:
        rows[:, : bias.shape[1]] += bias[experts]
    return rows
