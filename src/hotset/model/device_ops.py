"""The ops on a GPU: Triton kernels over buffers made once; an expert is read where the address table says."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch

from hotset.experts.streams import Mark, SideStream
from hotset.kernels.activation import Activation, quantise
from hotset.kernels.embed import embed
from hotset.kernels.experts import ExpertBuffers, ExpertExtras, combine, down, gate_up
from hotset.kernels.hidden import hidden_values
from hotset.kernels.matvec import DeviceMatrix, matvec
from hotset.kernels.norm import rms_norm
from hotset.kernels.replay import replay
from hotset.kernels.router import route
from hotset.kernels.rows import Rows
from hotset.model import device_mixers
from hotset.model.batch import MAX_ROWS
from hotset.quant.layout import SPAN_ALIGNMENT, SpanLayout, align

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hotset.experts.cache import ExpertCache
    from hotset.model.config import ModelConfig
    from hotset.model.device_kv import DeviceKV
    from hotset.model.lookahead import NextRouter
    from hotset.model.weights import DenseWeights, ExpertWeights, Layer, NormWeights

# What `linear` returns stays until so many later calls: q, k, v and a gate are needed together.
KEPT_RESULTS = 4
# A miss's gate and up are multiplied while its down matrix arrives, where that takes the bus as long as the launches cost (5 us at 50 GB/s).
MIN_TAIL_BYTES = 256 << 10
# Rows of zeros that sums grow in: a step's, and within it a branch's, while the step before is still read.
KEPT_SUMS = 3


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """`rows` of one step on the device; `wanted` are those whose logits are asked for, None for all of them."""

    rows: Rows
    wanted: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Routing:
    """Recorded picks in the router's place: `trace` int16 [tokens, layers with experts, k]; position 0 of a sequence is token `offsets` int32 [n_seqs]."""

    trace: torch.Tensor
    offsets: torch.Tensor


class Scratch:
    """Buffers of MAX_ROWS rows by use and width, made on first use; all layers take them in turn."""

    def __init__(self, device: torch.device | str, *, fast: bool) -> None:
        self.device = torch.device(device)
        self.fast = fast
        self._made: dict[object, Any] = {}

    def floats(
        self, use: str, m: int, width: int, dtype: torch.dtype = torch.float32, *, times: int = 1
    ) -> torch.Tensor:
        """Rows [m, width], contiguous; with `times` there may be so many for each row of a step."""
        make = partial(torch.zeros, MAX_ROWS * times, width, dtype=dtype, device=self.device)
        buffer: torch.Tensor = self._once((use, width, times), make)
        return buffer[:m]

    def activation(self, use: str, m: int, width: int, *, times: int = 1) -> Activation:
        """Rows [m, width] with their quantised form in fast mode."""
        make = partial(Activation.empty, MAX_ROWS * times, width, self.device, quantised=self.fast)
        buffer: Activation = self._once((use, width, times), make)
        return buffer.rows(m)

    def experts(self, span: SpanLayout, n_picks: int) -> ExpertBuffers:
        """What the expert step needs between its launches, for spans of this shape."""
        matrix = span.matrix("down")
        make = partial(ExpertBuffers.empty, span, n_picks, self.device, quantised=self.fast)
        return cast("ExpertBuffers", self._once(("experts", matrix.rows, matrix.cols), make))

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class DeviceOps:
    """See transformer.Ops. Nothing waits for the device, and after the first step nothing is allocated."""

    def __init__(
        self,
        config: ModelConfig,
        cache: ExpertCache,
        kv: DeviceKV,
        scratch: Scratch,
        next_routers: Mapping[int, NextRouter] = MappingProxyType({}),
    ) -> None:
        assert config.d_model % 16 == 0
        self.config = config
        self.cache = cache
        self.kv = kv
        self.scratch = scratch
        self.routing: Routing | None = None
        self._next_routers = next_routers
        self._turn = self._sum = 0
        # Hits are computed while misses arrive, and what the next layer will miss is guessed meanwhile.
        self._fetching = SideStream(scratch.device)
        self._guessing = SideStream(scratch.device, apart=self._fetching)
        self._head_arrived, self._arrived, self._guessed = (Mark(scratch.device) for _ in range(3))

    def embed(self, matrix: DeviceMatrix, batch: DeviceBatch) -> torch.Tensor:
        self._turn = self._sum = 0
        x = self.scratch.floats("x", len(batch.rows), self.config.d_model)
        embed(batch.rows.tokens, matrix, x)
        return x

    def norm(self, x: torch.Tensor, norm: NormWeights) -> Activation:
        a = self.scratch.activation("normed", len(x), len(norm.weight))
        return self._norm(x, norm, a)

    def normed(self, x: torch.Tensor, norm: NormWeights) -> torch.Tensor:
        a = Activation(self.scratch.floats("normed rows", len(x), len(norm.weight)))
        return self._norm(x, norm, a).f32

    def _norm(self, x: torch.Tensor, norm: NormWeights, a: Activation) -> Activation:
        if len(x):
            rule = self.config.norm
            rms_norm(x[:, : len(norm.weight)], norm.weight, a, rule.eps, bias=norm.bias, centred=rule.centred)
        return a

    def activation(self, x: torch.Tensor) -> Activation:
        a = self.scratch.activation("plain", *x.shape)
        a.f32.copy_(x)
        quantise(a)
        return a

    def linear(self, a: Activation, matrix: DeviceMatrix) -> torch.Tensor:
        out = self.scratch.floats(f"linear {self._turn}", a.shape[0], matrix.layout.padded_rows)
        self._turn = (self._turn + 1) % KEPT_RESULTS
        if len(out):
            matvec(a, matrix, out)
        return out

    def linear_stack(self, a: Activation, matrix: DeviceMatrix) -> torch.Tensor:
        """Rows [m * n, padded rows]: row r * n + i is matrix i of n times row r * n + i of `a`."""
        assert matrix.address is not None
        n, rows = len(matrix.address) // MAX_ROWS, len(a.f32)
        out = self.scratch.floats("stack", rows, matrix.layout.padded_rows, times=n)
        down(a, matrix.address[:rows], SpanLayout(("down",), (matrix.layout,)), out)
        return out

    def add_linear(self, x: torch.Tensor, a: Activation, matrix: DeviceMatrix) -> torch.Tensor:
        matvec(a, matrix, x, add=True)
        return x

    def zeros(self, x: torch.Tensor) -> torch.Tensor:
        self._sum = (self._sum + 1) % KEPT_SUMS
        return self.scratch.floats(f"sum {self._sum}", *x.shape).zero_()

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        return self.scratch.floats("layer input", *x.shape).copy_(x)

    def add(self, x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
        return x.add_(y, alpha=scale)

    def scale(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x.mul_(scale)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor | None,
        gate: torch.Tensor | None,
        layer: Layer,
        batch: DeviceBatch,
    ) -> Activation:
        return device_mixers.attend(self, q, k, v, gate, layer, batch.rows)

    def attend_latent(self, q: torch.Tensor, kv: torch.Tensor, layer: Layer, batch: DeviceBatch) -> Activation:
        return device_mixers.attend_latent(self, q, kv, layer, batch.rows)

    def convolve(self, inner: torch.Tensor, layer: Layer, batch: DeviceBatch) -> Activation:
        return device_mixers.short_convolution(self, inner, layer, batch.rows)

    def recur(
        self,
        qkv: torch.Tensor,
        z: torch.Tensor,
        beta: torch.Tensor,
        alpha: torch.Tensor,
        layer: Layer,
        batch: DeviceBatch,
    ) -> Activation:
        return device_mixers.delta_net(self, qkv, z, beta, alpha, layer, batch.rows)

    def hidden(
        self, gate: torch.Tensor | None, up: torch.Tensor, part: DenseWeights, row_gate: torch.Tensor | None
    ) -> Activation:
        rule = part.rule.activation
        a = self.scratch.activation("hidden", len(up), part.down.layout.cols)
        hidden_values(gate, up, row_gate, a, rule.kind, rule.limit)
        return a

    def route(
        self, logits: torch.Tensor, experts: ExpertWeights, batch: DeviceBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        m, k = len(logits), self.config.n_picks
        picks = self.scratch.floats("picks", m, k, torch.int32)
        weights = self.scratch.floats("pick weights", m, k)
        if self.routing is None:
            route(logits, experts.rule.router, experts.selection_bias, picks, weights)
        else:
            replay(self.routing.trace, batch.rows, self.routing.offsets, experts.index, picks, weights)
        return picks, weights

    def add_experts(
        self,
        x: torch.Tensor,
        a: Activation,
        picks: tuple[torch.Tensor, torch.Tensor],
        experts: ExpertWeights,
        batch: DeviceBatch,
    ) -> torch.Tensor:
        chosen, weights = picks
        cache, span, n = self.cache, experts.span, chosen.numel()
        cache.lookup(experts.index, chosen, batch.rows.row_mask)
        x_is_read = self._guess(x, experts.index, n)
        buffers = self.scratch.experts(span, MAX_ROWS * self.config.n_picks)
        hidden, z = buffers.hidden.rows(n), buffers.z[:n]
        extras = extras_of(experts, chosen.view(-1), weights.view(-1))

        hits, misses = cache.hit_address[:n], cache.miss_address[:n]
        self._fetch(experts)
        gate_up(a, hits, span, hidden, extras=extras)
        down(hidden, hits, span, z, extras=extras)
        self._head_arrived.wait()
        gate_up(a, misses, span, hidden, extras=extras)
        self._arrived.wait()
        down(hidden, misses, span, z, extras=extras)
        if x_is_read:
            self._guessed.wait()
        combine(z, None if experts.rule.weights_on_input else weights.view(-1), cache.address[:n], x)
        return x

    def _fetch(self, experts: ExpertWeights) -> None:
        """Beside what follows: bring the layer's misses, then what the next layer is likely to miss."""
        cache, layer, head = self.cache, experts.index, head_bytes(experts.span)
        with self._fetching.fork():
            cache.fetch(layer, 0, head)
            self._head_arrived.set()
            if head < experts.span.n_bytes:
                cache.fetch(layer, head)
            self._arrived.set()
            self._guessed.wait()
            cache.prefetch(layer)

    def _guess(self, x: torch.Tensor, layer: int, n_picks: int) -> bool:
        """Beside what follows: guess what the next layer will miss. Returns whether rows x are read for it, up to the mark."""
        with self._guessing.fork():
            likely = self._likely(x, layer) if self.cache.prefetches(layer + 1, n_picks) else None
            self.cache.guess(layer, likely)
            self._guessed.set()
        return likely is not None

    def _likely(self, x: torch.Tensor, layer: int) -> torch.Tensor | None:
        """What the next layer's router makes of rows x: picks int32 [m, k]; None where it cannot be asked."""
        following = self._next_routers.get(layer)
        if following is None or self.routing is not None:
            return None
        m, k, experts = len(x), self.config.n_picks, following.experts
        a = self._norm(x, following.norm, self.scratch.activation("likely input", m, len(following.norm.weight)))
        logits = self.scratch.floats("likely logits", m, experts.router.layout.padded_rows)
        matvec(a, experts.router, logits)
        picks = self.scratch.floats("likely picks", m, k, torch.int32)
        weights = self.scratch.floats("likely weights", m, k)
        route(logits, experts.rule.router, experts.selection_bias, picks, weights)
        return picks

    def wanted(self, x: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        if batch.wanted is None:
            return x
        out = self.scratch.floats("wanted", len(batch.wanted), self.config.d_model)
        for i, row in enumerate(batch.wanted):
            out[i].copy_(x[row])
        return out

    def logits(self, a: Activation, matrix: DeviceMatrix) -> torch.Tensor:
        out = self.linear(a, matrix)
        if self.config.logit_scale != 1.0:
            out.mul_(self.config.logit_scale)
        if cap := self.config.logit_softcap:
            out.div_(cap).tanh_().mul_(cap)
        self._fetching.join()
        return out


def extras_of(experts: ExpertWeights, picks: torch.Tensor, weights: torch.Tensor) -> ExpertExtras:
    """What a layer's experts have beside their matrices."""
    rule = experts.rule
    return ExpertExtras(
        kind=rule.activation.kind,
        limit=rule.activation.limit,
        picks=picks if has_extras(experts) else None,
        gate_bias=experts.gate_bias,
        up_bias=experts.up_bias,
        down_bias=experts.down_bias,
        gate_scale=experts.gate_scale,
        up_scale=experts.up_scale,
        down_scale=experts.down_scale,
        input_weight=weights if rule.weights_on_input else None,
    )


def head_bytes(span: SpanLayout) -> int:
    """Bytes of a span that are fetched first: gate and up, or all of it where the rest is small."""
    head = align(span.start("down"), SPAN_ALIGNMENT)
    return head if span.n_bytes - head >= MIN_TAIL_BYTES else span.n_bytes


def has_extras(experts: ExpertWeights) -> bool:
    """Whether anything is found by an expert's number."""
    names = ("gate_bias", "up_bias", "down_bias", "gate_scale", "up_scale", "down_scale")
    return any(getattr(experts, name) is not None for name in names)
