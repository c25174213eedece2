"""The ops on a GPU: Triton kernels over buffers made once; an expert is read where the address table says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from hotset.host.rearrange import to_planes
from hotset.kernels.activation import Activation, quantise
from hotset.kernels.attention import SplitBuffers, attention
from hotset.kernels.embed import embed
from hotset.kernels.experts import ExpertBuffers, combine, down, gate_up
from hotset.kernels.kv_cache import KVCache, empty_cells
from hotset.kernels.matvec import DeviceMatrix, matvec
from hotset.kernels.norm import rms_norm
from hotset.kernels.replay import replay
from hotset.kernels.rope import DeviceRope, qk_norm_rope_store
from hotset.kernels.router import route
from hotset.kernels.rows import Rows
from hotset.model.batch import MAX_ROWS
from hotset.model.rope import rope_tables
from hotset.model.weights import AttentionWeights

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from hotset.experts.cache import ExpertCache
    from hotset.model.config import ModelConfig
    from hotset.model.kv import KVTypes
    from hotset.model.weights import ExpertWeights, Layer, NormWeights
    from hotset.quant.layout import Bytes, MatrixLayout, SpanLayout

# What `linear` returns stays until so many later calls: q, k and v are needed together.
KEPT_RESULTS = 4


class DevicePlace:
    """Puts weights onto a device, still quantised."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)

    def matrix(
        self, layout: MatrixLayout, blocks: Bytes, *, n: int = 1, bias: NDArray[np.float32] | None = None
    ) -> DeviceMatrix:
        assert n == 1
        assert bias is None
        return DeviceMatrix(layout, torch.from_numpy(to_planes(layout, blocks)).to(self.device))

    def vector(self, values: NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(values.copy()).to(self.device)


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """`rows` of one step on the device; `wanted` are those whose logits are asked for, None for all of them."""

    rows: Rows
    wanted: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Routing:
    """Recorded picks in the router's place: `trace` int16 [tokens, layers, k]; position 0 of a sequence is token `offsets` int32 [n_seqs]."""

    trace: torch.Tensor
    offsets: torch.Tensor


class DeviceKV:
    """Keys and values of all layers, and the tables of rotary positions."""

    def __init__(
        self, config: ModelConfig, n_ctx: int, n_seqs: int, device: torch.device | str, types: KVTypes
    ) -> None:
        self.n_ctx = n_ctx
        shape = (config.n_layers, n_seqs, config.n_kv_heads, n_ctx, config.d_head)
        (k, k_scale), (v, v_scale) = (empty_cells(shape, kind, device) for kind in (types.k, types.v))
        self.layers = tuple(
            KVCache(k[i], v[i], None if k_scale is None else k_scale[i], None if v_scale is None else v_scale[i])
            for i in range(config.n_layers)
        )
        assert config.rope
        self.cos, self.sin = (torch.from_numpy(t).to(device) for t in rope_tables(config.rope, n_ctx))
        self.splits = SplitBuffers.empty(MAX_ROWS, config.n_heads, config.d_head, n_ctx, device)

    def turn_and_store(
        self, config: ModelConfig, layer: Layer, rows: Rows, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Norm and rotate q and k, store k and v; returns q float32 [m, n_heads * d_head] without its padding."""
        width = config.n_kv_heads * config.d_head
        q = q[:, : config.n_heads * config.d_head]
        w = layer.mixer
        assert isinstance(w, AttentionWeights)
        rope = DeviceRope(self.cos, self.sin, q_norm=w.q_norm, k_norm=w.k_norm, eps=config.norm_eps)
        qk_norm_rope_store(q, k[:, :width], v[:, :width], rope, self.layers[layer.index], rows)
        return q


class Scratch:
    """Buffers of MAX_ROWS rows by use and width, made on first use; all layers take them in turn."""

    def __init__(self, device: torch.device | str, *, fast: bool) -> None:
        self.device = torch.device(device)
        self.fast = fast
        self._made: dict[object, Any] = {}

    def floats(self, use: str, m: int, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Rows [m, width], contiguous."""
        make = partial(torch.empty, MAX_ROWS, width, dtype=dtype, device=self.device)
        buffer: torch.Tensor = self._once((use, width), make)
        return buffer[:m]

    def activation(self, use: str, m: int, width: int) -> Activation:
        """Rows [m, width] with their quantised form in fast mode."""
        make = partial(Activation.empty, MAX_ROWS, width, self.device, quantised=self.fast)
        buffer: Activation = self._once((use, width), make)
        return buffer.rows(m)

    def experts(self, span: SpanLayout, n_picks: int) -> ExpertBuffers:
        """What the expert step needs between its launches, for spans of this shape."""
        down = span.matrix("down")
        make = partial(ExpertBuffers.empty, span, n_picks, self.device, quantised=self.fast)
        return cast("ExpertBuffers", self._once(("experts", down.rows, down.cols), make))

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class DeviceOps:
    """See transformer.Ops. Nothing waits for the device, and after the first step nothing is allocated."""

    def __init__(self, config: ModelConfig, cache: ExpertCache, kv: DeviceKV, scratch: Scratch) -> None:
        assert config.d_model % 16 == 0
        self.config = config
        self.cache = cache
        self.kv = kv
        self.scratch = scratch
        self.routing: Routing | None = None
        self._turn = 0
        on_gpu = scratch.device.type == "cuda"
        # Hits are computed while misses arrive.
        self._side = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]

    def embed(self, matrix: DeviceMatrix, batch: DeviceBatch) -> torch.Tensor:
        self._turn = 0
        x = self.scratch.floats("x", len(batch.rows), self.config.d_model)
        embed(batch.rows.tokens, matrix, x)
        return x

    def norm(self, x: torch.Tensor, norm: NormWeights) -> Activation:
        a = self.scratch.activation("normed", *x.shape)
        if len(x):
            rms_norm(x, norm.weight, a, self.config.norm_eps)
        return a

    def linear(self, a: Activation, matrix: DeviceMatrix) -> torch.Tensor:
        out = self.scratch.floats(f"linear {self._turn}", a.shape[0], matrix.layout.padded_rows)
        self._turn = (self._turn + 1) % KEPT_RESULTS
        if len(out):
            matvec(a, matrix, out)
        return out

    def add_linear(self, x: torch.Tensor, a: Activation, matrix: DeviceMatrix) -> torch.Tensor:
        matvec(a, matrix, x, add=True)
        return x

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: None, layer: Layer, batch: DeviceBatch
    ) -> Activation:
        kv = self.kv
        q = kv.turn_and_store(self.config, layer, batch.rows, q, k, v)
        out = self.scratch.activation("attended", *q.shape)
        attention(q, kv.layers[layer.index], batch.rows, self.config.d_head**-0.5, kv.splits, out.f32)
        quantise(out)
        return out

    def route(
        self, logits: torch.Tensor, experts: ExpertWeights, batch: DeviceBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        m, k = len(logits), self.config.n_picks
        picks = self.scratch.floats("picks", m, k, torch.int32)
        weights = self.scratch.floats("pick weights", m, k)
        if self.routing is None:
            route(logits, self.config.router, None, picks, weights)
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
        buffers = self.scratch.experts(span, MAX_ROWS * self.config.n_picks)
        hidden, z = buffers.hidden.rows(n), buffers.z[:n]

        def compute(address: torch.Tensor) -> None:
            gate_up(a, address, span, hidden)
            down(hidden, address, span, z)

        with self._beside():
            cache.fetch(experts.index)
        compute(cache.hit_address[:n])
        self._join()
        compute(cache.miss_address[:n])
        combine(z, weights.view(-1), cache.address[:n], x)
        return x

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """What is launched inside runs beside what follows, up to `_join`."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def _join(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)

    def logits(self, a: Activation, matrix: DeviceMatrix) -> torch.Tensor:
        return self.linear(a, matrix)

    def wanted(self, x: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        if batch.wanted is None:
            return x
        out = self.scratch.floats("wanted", len(batch.wanted), self.config.d_model)
        for i, row in enumerate(batch.wanted):
            out[i].copy_(x[row])
        return out
