"""The ops for a chunk of a long prompt on a GPU: tensor cores over quantised weights, and experts that stream in while others compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hotset.kernels.chunk_attention import chunk_attention
from hotset.kernels.chunk_dense import dense
from hotset.kernels.chunk_plan import ChunkPlan
from hotset.kernels.embed import embed
from hotset.kernels.grouped import GroupedBuffers, combine_rows, down_wave, gate_up_wave
from hotset.kernels.half import ChunkRows, halve, in_halves, rms_norm_rows
from hotset.kernels.router import route
from hotset.kernels.tuning import chunk_tuning_for
from hotset.model.device_ops import KEPT_RESULTS

if TYPE_CHECKING:
    from hotset.experts.picked_waves import PickedWaves
    from hotset.experts.waves import ExpertWaves, IdleWaves
    from hotset.kernels.matvec import DeviceMatrix
    from hotset.kernels.rows import Rows
    from hotset.model.config import ModelConfig
    from hotset.model.device_kv import DeviceKV
    from hotset.model.weights import ExpertWeights, Layer, NormWeights
    from hotset.quant.layout import SpanLayout


@dataclass(frozen=True, eq=False)
class ChunkBatch:
    """Successive `rows` of one sequence on the device; `wanted` are those whose logits are asked for."""

    rows: Rows
    wanted: tuple[int, ...]


class ChunkScratch:
    """Buffers of chunks of up to `max_rows` rows; all layers take them in turn."""

    def __init__(
        self,
        config: ModelConfig,
        spans: tuple[SpanLayout, ...],
        max_rows: int,
        max_waves: int,
        device: torch.device | str,
    ) -> None:
        self.max_rows = max_rows
        self.device = torch.device(device)
        d, k = config.d_model, config.n_picks
        self.x = torch.empty(max_rows, d, device=device)
        self.normed = ChunkRows.empty(max_rows, d, device)
        self.attended = ChunkRows.empty(max_rows, config.n_heads * config.d_head, device)
        self.picks = torch.empty(max_rows, k, dtype=torch.int32, device=device)
        self.weights = torch.empty(max_rows, k, device=device)
        tile = chunk_tuning_for(self.device).expert_tokens
        self.plan = ChunkPlan.empty(max_rows, k, config.n_experts, max_waves, tile, device)
        self._results: dict[tuple[int, int], torch.Tensor] = {}
        self._grouped: dict[object, GroupedBuffers] = {}
        for span in spans:
            self.grouped(span, max_rows * k)

    def result(self, turn: int, m: int, width: int) -> torch.Tensor:
        """Rows [m, width] of the `turn`-th product in a row."""
        if (turn, width) not in self._results:
            self._results[turn, width] = torch.empty(self.max_rows, width, device=self.device)
        return self._results[turn, width][:m]

    def grouped(self, span: SpanLayout, max_pairs: int) -> GroupedBuffers:
        """What the expert step needs between its launches, for spans of this shape."""
        down = span.matrix("down")
        key = (span.matrix("gate").padded_rows, down.padded_rows, down.cols, in_halves(down.fmt, down.cols))
        if key not in self._grouped:
            self._grouped[key] = GroupedBuffers.empty(span, max_pairs, self.device)
        return self._grouped[key]


class ChunkOps:
    """See transformer.Ops. Residency and scores of the expert cache stay as they are: resident experts are used where they lie."""

    def __init__(
        self,
        config: ModelConfig,
        kv: DeviceKV,
        scratch: ChunkScratch,
        waves: ExpertWaves | PickedWaves | IdleWaves,
    ) -> None:
        self.config = config
        self.kv = kv
        self.scratch = scratch
        self.waves = waves
        self._turn = 0

    def embed(self, matrix: DeviceMatrix, batch: ChunkBatch) -> torch.Tensor:
        self._turn = 0
        x = self.scratch.x[: len(batch.rows)]
        embed(batch.rows.tokens, matrix, x)
        return x

    def norm(self, x: torch.Tensor, norm: NormWeights) -> ChunkRows:
        a = self.scratch.normed.rows(x.shape[0])
        if x.shape[0]:
            rms_norm_rows(x, norm.weight, a, self.config.norm_eps)
        return a

    def linear(self, a: ChunkRows, matrix: DeviceMatrix) -> torch.Tensor:
        m, width = a.shape[0], matrix.layout.padded_rows
        # The output head is wide and wanted for few rows: it gets memory of its own.
        is_head = matrix.layout.rows == self.config.n_vocab
        out = torch.empty(m, width, device=a.f32.device) if is_head else self.scratch.result(self._turn, m, width)
        self._turn = (self._turn + 1) % KEPT_RESULTS
        if m:
            dense(a, matrix, out)
        return out

    def add_linear(self, x: torch.Tensor, a: ChunkRows, matrix: DeviceMatrix) -> torch.Tensor:
        dense(a, matrix, x, add=True)
        return x

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: None, layer: Layer, batch: ChunkBatch
    ) -> ChunkRows:
        kv = self.kv
        q = kv.turn_and_store(layer, batch.rows, q, k, v)
        out = self.scratch.attended.rows(q.shape[0])
        chunk_attention(q, kv.keys_values(layer.index), batch.rows, self.config.d_head**-0.5, out.f32)
        halve(out)
        return out

    def route(
        self, logits: torch.Tensor, experts: ExpertWeights, batch: ChunkBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        m = len(batch.rows)
        picks, weights = self.scratch.picks[:m], self.scratch.weights[:m]
        route(logits, experts.rule.router, None, picks, weights)
        return picks, weights

    def add_experts(
        self,
        x: torch.Tensor,
        a: ChunkRows,
        picks: tuple[torch.Tensor, torch.Tensor],
        experts: ExpertWeights,
        batch: ChunkBatch,
    ) -> torch.Tensor:
        chosen, weights = picks
        span, plan = experts.span, self.scratch.plan
        buffers = self.scratch.grouped(span, chosen.numel())
        cut = self.waves.cut(experts.index, chosen)
        plan.make(chosen, cut.order, cut.wave_ranks)
        for wave in range(cut.n_waves):
            with self.waves.present(experts.index, wave):
                gate_up_wave(a, cut.address, plan, wave, span, buffers)
                down_wave(cut.address, plan, wave, span, buffers)
        combine_rows(buffers, weights, x)
        return x

    def logits(self, a: ChunkRows, matrix: DeviceMatrix) -> torch.Tensor:
        return self.linear(a, matrix)

    def wanted(self, x: torch.Tensor, batch: ChunkBatch) -> torch.Tensor:
        if batch.wanted == tuple(range(len(x))):
            return x
        return x[list(batch.wanted)]
