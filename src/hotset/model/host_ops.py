"""The ops on the CPU: Numba kernels over weights in planes; experts are computed where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotset.host import dot
from hotset.host.activation import Activation, quantized, rms_norm, swiglu
from hotset.host.attention import attend_kernel, rotate
from hotset.host.compile import compiled
from hotset.host.matmul import grouped_matmul
from hotset.host.rearrange import to_planes
from hotset.model.batch import MAX_ROWS
from hotset.model.rope import rope_tables
from hotset.model.routing import pick_row, score_row

if TYPE_CHECKING:
    from hotset.experts.bank import ExpertBank
    from hotset.experts.host_cache import HostCache
    from hotset.model.batch import Batch
    from hotset.model.config import ModelConfig
    from hotset.model.weights import Layer
    from hotset.quant.layout import Bytes, MatrixLayout, SpanLayout

Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class HostMatrix:
    """A matrix in planes in host memory."""

    layout: MatrixLayout
    data: Bytes
    address: NDArray[np.int64]


class HostPlace:
    """Puts weights into host memory."""

    def matrix(self, layout: MatrixLayout, blocks: Bytes) -> HostMatrix:
        data = to_planes(layout, blocks)
        return HostMatrix(layout, data, np.array([data.ctypes.data], np.int64))

    def vector(self, values: Rows) -> Rows:
        return values


class HostKV:
    """Keys and values float32 (reference) or float16 bits (fast), each [layers][n_seqs, n_kv_heads, n_ctx, d_head]."""

    def __init__(self, config: ModelConfig, n_ctx: int, n_seqs: int, *, half: bool) -> None:
        self.n_ctx = n_ctx
        self.half = half
        shape = (config.n_layers, n_seqs, config.n_kv_heads, n_ctx, config.d_head)
        self.keys = np.zeros(shape, np.float16 if half else np.float32)
        self.values = np.zeros_like(self.keys)
        self.cos, self.sin = rope_tables(config.rope, n_ctx)

    def store(self, layer: int, batch: Batch, k: Rows, v: Rows) -> None:
        """Keep the rows' keys and values, float32 [m, >= n_kv_heads * d_head], at their positions."""
        _, _, n_heads, _, d_head = self.keys.shape
        for cache, rows in ((self.keys, k), (self.values, v)):
            heads = rows[:, : n_heads * d_head].reshape(-1, n_heads, d_head)
            if len(heads) == 1:  # plain indices take a tenth of the time of arrays of indices
                cache[layer, batch.sequences[0], :, batch.positions[0]] = heads[0]
            else:
                cache[layer, batch.sequences, :, batch.positions] = heads

    def layer(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values of a layer as the attention kernel reads them."""
        kind = np.uint16 if self.half else np.float32
        return self.keys[index].view(kind), self.values[index].view(kind)


_score = compiled(inline=True)(score_row)
_pick = compiled(inline=True)(pick_row)


@compiled()
def _route_rows(logits: Any, sigmoid: bool, renormalise: bool, scale: float, picks: Any, weights: Any, n: int) -> None:
    scores = np.empty(n, np.float32)
    for r in range(len(logits)):
        row = logits[r, :n]
        _score(row, sigmoid, scores)
        _pick(row, scores, (renormalise, scale), picks[r], weights[r])


@compiled()
def _by_expert(picks: Any, n_experts: int) -> Any:
    """Flat picks [pairs] -> experts that occur (ascending), where each one's pairs begin (and the end), pairs in that order."""
    counts = np.zeros(n_experts + 1, np.int64)
    for e in picks:
        counts[e + 1] += 1
    starts = np.cumsum(counts)
    pairs = np.empty(picks.size, np.int64)
    place = starts.copy()
    for i in range(picks.size):
        pairs[place[picks[i]]] = i
        place[picks[i]] += 1
    experts = np.nonzero(counts[1:])[0]
    return experts, np.append(starts[experts], picks.size), pairs


@compiled()
def _combine(z: Any, weights: Any, n: int) -> Any:
    """Rows of pairs [m k, .] and weights [m, k] -> [m, n], summed in the order of picks."""
    m, k = weights.shape
    out = np.zeros((m, n), np.float32)
    for r in range(m):
        for j in range(k):
            for i in range(n):
                out[r, i] += weights[r, j] * z[r * k + j, i]
    return out


class HostOps:
    """See transformer.Ops. `fast` takes int8 products where the format has them and a float16 KV cache; else all is float32."""

    def __init__(self, config: ModelConfig, bank: ExpertBank, cache: HostCache, kv: HostKV, *, fast: bool) -> None:
        self.config = config
        self.bank = bank
        self.cache = cache
        self.kv = kv
        self.fast = fast
        # Recorded picks int16 [tokens, layers, k] that take the router's place in benchmarks.
        self.routing: NDArray[np.int16] | None = None
        self._attend = attend_kernel(int(kv.half))

    def embed(self, matrix: HostMatrix, batch: Batch) -> Rows:
        return matrix.layout.dequantize_rows(matrix.data, batch.tokens)

    def norm(self, x: Rows, weight: Rows) -> Activation:
        return rms_norm(x, weight, self.config.norm_eps, integers=self.fast)

    def linear(self, a: Activation, matrix: HostMatrix) -> Rows:
        rows = np.arange(a.n_rows)
        starts = np.array([0, a.n_rows])
        return self._multiply(a, matrix.layout, matrix.address, starts, rows, rows)

    def add_linear(self, x: Rows, a: Activation, matrix: HostMatrix) -> Rows:
        x += self.linear(a, matrix)[:, : x.shape[1]]
        return x

    def _multiply(
        self, a: Activation, layout: MatrixLayout, addresses: Any, starts: Any, x_rows: Any, out_rows: Any
    ) -> Rows:
        integer = a.has_integers and layout.fmt.integer
        multiply = grouped_matmul(layout.fmt.ggml_type, dot.INTEGER if integer else dot.FLOAT)
        out = np.empty((out_rows.size, layout.padded_rows), np.float32)
        multiply(
            addresses, starts, x_rows, out_rows, layout.n_groups, layout.n_blocks, a.f, a.q, a.d, a.m, a.h, out
        )  # fmt: skip
        return out

    def attend(self, q: Rows, k: Rows, v: Rows, layer: Layer, batch: Batch) -> Activation:
        c, kv = self.config, self.kv
        rotate(
            q, k, layer.q_norm, layer.k_norm, c.norm_eps, batch.positions, kv.cos, kv.sin,
            n_heads=c.n_heads, n_kv=c.n_kv_heads, head=c.d_head,
        )  # fmt: skip
        kv.store(layer.index, batch, k, v)
        out = np.empty((batch.n_rows, c.n_heads * c.d_head), np.float32)
        self._attend(
            q, *kv.layer(layer.index), batch.positions, batch.sequences, c.d_head**-0.5, c.d_head, c.n_heads, out
        )  # fmt: skip
        return quantized(out, integers=self.fast)

    def route(self, logits: Rows, layer: Layer, batch: Batch) -> tuple[NDArray[np.int32], Rows]:
        rule = self.config.router
        if self.routing is not None:
            picks = self.routing[batch.positions % len(self.routing), layer.index].astype(np.int32)
            return picks, np.full(picks.shape, 1 / rule.n_picks, np.float32)
        picks = np.empty((len(logits), rule.n_picks), np.int32)
        weights = np.empty((len(logits), rule.n_picks), np.float32)
        _route_rows(
            logits, rule.scoring == "sigmoid", rule.renormalise, rule.scale, picks, weights, rule.n_experts
        )  # fmt: skip
        return picks, weights

    def add_experts(
        self, x: Rows, a: Activation, picks: tuple[NDArray[np.int32], Rows], layer: Layer, batch: Batch
    ) -> Rows:
        chosen, weights = picks
        for i in range(0, batch.n_rows, MAX_ROWS):  # the policy sees prompts as the GPU's decode kernels do
            self.cache.lookup(layer.index, chosen[i : i + MAX_ROWS], weights=weights[i : i + MAX_ROWS])
        span = layer.experts
        experts, starts, pairs = _by_expert(chosen.reshape(-1), self.config.n_experts)
        spans = self.bank.base[layer.index] + experts * span.n_bytes

        rows = pairs // chosen.shape[1]
        gate, up = self._gate_up(a, span, spans, starts, rows, pairs)
        hidden = swiglu(gate, up, self.config.d_expert, integers=self.fast)
        z = self._multiply(hidden, span.matrix("down"), spans + span.start("down"), starts, pairs, pairs)
        x += _combine(z, weights, self.config.d_model)
        return x

    def _gate_up(
        self, a: Activation, span: SpanLayout, spans: Any, starts: Any, rows: Any, pairs: Any
    ) -> tuple[Rows, Rows]:
        """Gate and up of every pair [pairs, d_expert]; one launch for both where their formats agree, for each one joins all threads."""
        gate, up, n = span.matrix("gate"), span.matrix("up"), pairs.size
        at_gate, at_up = spans + span.start("gate"), spans + span.start("up")
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
