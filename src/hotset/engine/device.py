"""The GPU runner."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotset.engine.device_sequences import DeviceSequences
from hotset.engine.device_session import DeviceSession
from hotset.engine.room import with_room
from hotset.engine.runner import MODES, Mode
from hotset.engine.seat import Seat
from hotset.engine.stats import DENSE, Meter, Stats
from hotset.experts.picked_waves import PickedWaves
from hotset.experts.waves import ExpertWaves, IdleWaves, Staging, expects_all
from hotset.kernels.rows import Rows
from hotset.model.batch import MAX_ROWS
from hotset.model.chunk_ops import ChunkBatch, ChunkOps, ChunkScratch
from hotset.model.device_kv import DeviceKV
from hotset.model.device_ops import DeviceBatch, DeviceOps, Scratch
from hotset.model.kv import DEFAULT, FLOAT32, KVTypes
from hotset.model.lookahead import next_routers
from hotset.model.transformer import forward

if TYPE_CHECKING:
    from hotset.experts.bank import ExpertBank
    from hotset.experts.cache import ExpertCache
    from hotset.experts.expert_map import ExpertMap
    from hotset.experts.policy import Policy
    from hotset.experts.slots import CacheShape
    from hotset.model.config import ModelConfig
    from hotset.model.weights import Weights

# Rows of a chunk where the logits of many rows are wanted at once.
MANY_LOGITS = 256


@dataclass(frozen=True, eq=False)
class DeviceModel:
    """A loaded model: weights and cache on the device, experts in host memory that is page-locked as far as may be."""

    config: ModelConfig
    weights: Weights
    bank: ExpertBank
    cache: ExpertCache
    device: torch.device


@dataclass(frozen=True, eq=False)
class ChunkBuffers:
    """What chunks of long prompts need beside the weights."""

    scratch: ChunkScratch
    staging: Staging

    @classmethod
    def empty(cls, model: DeviceModel, max_rows: int) -> ChunkBuffers:
        """Buffers for chunks of up to `max_rows` rows."""
        config, device = model.config, model.device
        staging = Staging(model.bank.span_bytes, config.n_experts, device)
        return cls(ChunkScratch(config, model.bank.spans, max_rows, staging.max_waves, device), staging)


@dataclass(frozen=True, eq=False)
class RunnerBuffers:
    """What runners that take turns may share: buffers of steps by mode, and those of chunks of long prompts."""

    scratch: dict[Mode, Scratch]
    chunks: ChunkBuffers | None

    @classmethod
    def empty(cls, model: DeviceModel, chunk_rows: int) -> RunnerBuffers:
        """Buffers for chunks of up to `chunk_rows` rows, none for 0."""
        scratch = {mode: Scratch(model.device, fast=mode == "fast") for mode in MODES}
        return cls(scratch, ChunkBuffers.empty(model, chunk_rows) if chunk_rows else None)


def inside(wanted: Sequence[int], start: int, n: int) -> tuple[int, ...]:
    """Those of `wanted` that lie in start .. start + n, counted from `start`."""
    return tuple(w - start for w in wanted if start <= w < start + n)


class DeviceRunner:
    """See runner.Runner."""

    device = "cuda"

    def __init__(
        self,
        model: DeviceModel,
        n_ctx: int,
        *,
        use_graphs: bool = True,
        chunk_rows: int = 0,
        buffers: RunnerBuffers | None = None,
        kv_types: KVTypes = DEFAULT,
        n_seqs: int = 0,
    ) -> None:
        self.model = model
        self._kv_types: dict[Mode, KVTypes] = {"fast": kv_types, "reference": FLOAT32}
        self.n_ctx = n_ctx
        self._next_routers = next_routers(model.weights)
        self._buffers = buffers or RunnerBuffers.empty(model, chunk_rows)
        self._use_graphs = use_graphs
        self._trace: torch.Tensor | None = None
        self._meter = Meter(model.cache)
        self._unused_steps = 0
        self.chunk = MAX_ROWS
        self.chunks = self._buffers.chunks
        # Memory is planned for one session, or for so many sequences that step together.
        self._sequences = DeviceSequences(self, n_seqs) if n_seqs else None
        self._free_seats = [] if n_seqs else [self.seat(1)]

    @property
    def shape(self) -> CacheShape:
        return self.model.cache.shape

    def beside(
        self, n_slots: Sequence[int], policy: Policy, *, threads: int | None = None, bus_factor: int = 1
    ) -> DeviceRunner:
        del threads  # steps are the GPU's work
        cache = self.model.cache.beside(n_slots, policy, bus_factor=bus_factor)
        model = replace(self.model, cache=cache)
        return DeviceRunner(
            model, self.n_ctx, use_graphs=self._use_graphs, buffers=self._buffers, kv_types=self._kv_types["fast"]
        )

    @property
    def cache(self) -> ExpertCache:
        return self.model.cache

    def kv(self, n_ctx: int, mode: Mode, n_seqs: int = 1) -> DeviceKV:
        """Empty keys and values for `n_seqs` sequences."""
        config, device, types = self.model.config, self.model.device, self._kv_types[mode]
        return with_room(self.model.cache, lambda: DeviceKV(config, n_ctx, n_seqs, device, types))

    def ops(self, kv: DeviceKV, mode: Mode) -> DeviceOps:
        """The ops over given keys and values."""
        model = self.model
        return DeviceOps(model.config, model.cache, kv, self._buffers.scratch[mode], self._next_routers)

    def forward(self, ops: DeviceOps, batch: DeviceBatch) -> torch.Tensor:
        """Logits float32 [n_wanted, n_vocab] of a batch, on the device."""
        logits: torch.Tensor = forward(ops, self.model.weights, batch)
        return logits[:, : self.model.config.n_vocab]

    def rows(self, tokens: Sequence[int], positions: Sequence[int], seqs: Sequence[int] | None = None) -> Rows:
        """Rows of given tokens, sequence 0 unless said otherwise."""
        table = [list(tokens), list(positions), list(seqs or [0] * len(tokens)), [1] * len(tokens)]
        return Rows(*torch.tensor(table, dtype=torch.int32, device=self.model.device))

    def prompt_rows(self, tokens: Sequence[int], start: int, m: int, seq: int = 0) -> Rows:
        """Successive tokens of a sequence as m rows, those past the end padding: one variant of every kernel serves all chunks."""
        n, padding = len(tokens), [0] * (m - len(tokens))
        positions = [start + min(i, n - 1) for i in range(m)]
        table = [[*tokens, *padding], positions, [seq] * m, [1] * n + padding]
        return Rows(*torch.tensor(table, dtype=torch.int32, device=self.model.device))

    def prompt(
        self,
        ops: DeviceOps,
        tokens: Sequence[int],
        start: int,
        wanted: Sequence[int],
        *,
        stepwise: bool = False,
        n_prompt: int | None = None,
        seq: int = 0,
    ) -> Iterator[torch.Tensor]:
        """Store tokens from position `start` on; yields the logits of the wanted positions (ascending), chunk by chunk.

        More than a few rows in fast mode take tensor cores and stream experts: 9 rows already touch half of 128 experts, and reading
        each once for all rows beats reading them anew for every eight. The path is chosen by the prompt's length, `n_prompt`
        where these tokens are but a part of it, never by what is left.
        """
        if self.chunks and ops.scratch.fast and not stepwise and (n_prompt or len(tokens)) > MAX_ROWS:
            yield from self._chunks_of(ops.kv, tokens, start, wanted, seq)
            return
        size = 1 if stepwise else self.chunk
        for at in range(0, len(tokens), size):
            part = tokens[at : at + size]
            yield self.forward(
                ops, DeviceBatch(self.prompt_rows(part, start + at, size, seq), inside(wanted, start + at, len(part)))
            )

    def _chunks_of(
        self, kv: DeviceKV, tokens: Sequence[int], start: int, wanted: Sequence[int], seq: int
    ) -> Iterator[torch.Tensor]:
        config, model = self.model.config, self.model
        assert self.chunks is not None
        # Many rows of logits at once would take more memory than the chunk itself.
        size = min(self.chunks.scratch.max_rows, MANY_LOGITS if len(wanted) > MANY_LOGITS else len(tokens))
        for at in range(0, len(tokens), size):
            part = tokens[at : at + size]
            rows = self.prompt_rows(part, start + at, len(part), seq)
            batch = ChunkBatch(rows, inside(wanted, start + at, len(part)))
            logits, waves = with_room(model.cache, partial(self._chunk, kv, batch))
            self._meter.add_prompt(waves.in_place, waves.streamed)
            yield logits[:, : config.n_vocab]

    def _chunk(self, kv: DeviceKV, batch: ChunkBatch) -> tuple[torch.Tensor, ExpertWaves | PickedWaves]:
        """One chunk's logits; done again it gives the same: it stores the same keys and values, and no expert moves."""
        config, model = self.model.config, self.model
        assert self.chunks is not None
        take_all = expects_all(len(batch.rows), config.n_experts, config.n_picks)
        staging = self.chunks.staging
        # What the device cannot read as a whole the host brings, who then has to know the picks.
        waves = (
            ExpertWaves(model.bank, model.cache, staging, take_all=take_all)
            if take_all or model.bank.bounce
            else PickedWaves(model.cache, staging, len(batch.rows))
        )
        return forward(ChunkOps(config, kv, self.chunks.scratch, waves), model.weights, batch), waves

    @property
    def has_states(self) -> bool:
        """Whether layers keep states, which cannot be cut back."""
        return self.model.config.state_elements > 0

    @property
    def _planned_seats(self) -> list[Seat]:
        return [*self._free_seats, *(self._sequences.seats.values() if self._sequences else ())]

    def compile(self) -> None:
        """Run everything idle that generating runs: kernels compile and buffers are made, and no expert is read."""
        for seat in self._planned_seats:
            seat.compile()
        ops = self.ops(self.kv(MAX_ROWS + 1, "fast"), "fast")
        self.forward(ops, DeviceBatch(self.idle_rows(MAX_ROWS), (MAX_ROWS - 1,)))
        if self.chunks:
            config = self.model.config
            idle = IdleWaves(config.n_experts, self.model.device)
            n = MAX_ROWS + 1
            batch = ChunkBatch(self.prompt_rows([0] * n, 0, n), (n - 1,))
            forward(ChunkOps(config, ops.kv, self.chunks.scratch, idle), self.model.weights, batch)
        self.reset_cache()

    def warm_up(self) -> None:
        """Capture the steps and run a prompt: from here on the bank, and what brings its experts, stay as they are. Nothing of it is counted."""
        for seat in self._planned_seats:
            seat.capture()
        n = MAX_ROWS + 1
        self.logits([0] * n, [n - 1], "fast", stepwise=False)
        self.reset_cache()

    def idle_rows(self, m: int) -> Rows:
        """Rows of nothing."""
        table = [[0] * m, list(range(m)), [0] * m, [0] * m]
        return Rows(*torch.tensor(table, dtype=torch.int32, device=self.model.device))

    def logits(
        self, tokens: Sequence[int], wanted: Sequence[int], mode: Mode, *, stepwise: bool
    ) -> NDArray[np.float32]:
        asked = np.asarray(wanted, np.int64)
        order = np.argsort(asked, kind="stable")
        out = np.empty((asked.size, self.model.config.n_vocab), np.float32)
        ops = self.ops(self.kv(len(tokens), mode), mode)
        done = 0
        with self._meter.phase("prompt", len(tokens)):
            for logits in self.prompt(ops, tokens, 0, sorted(asked.tolist()), stepwise=stepwise):
                out[order[done : done + len(logits)]] = logits.cpu().numpy()
                done += len(logits)
        return out

    def seat(self, m: int, kv: DeviceKV | None = None, n_seqs: int | None = None) -> Seat:
        """Rows for `m` sequences that step together, of the `n_seqs` in `kv`; by default of a KV cache of their own."""
        kv = kv or self.kv(self.n_ctx, "fast", m)
        model = self.model
        return Seat(
            self.ops(kv, "fast"), kv, model.weights, model.config.n_vocab, m, use_graphs=self._use_graphs, n_seqs=n_seqs
        )  # fmt: skip

    def set_routing(self, picks: NDArray[np.integer[Any]] | None) -> None:
        """Sessions from now on take the picks of their decode steps from a trace [tokens, layers, k], or (None) from the router again.

        Steps are captured anew for it. Prompts of more than a few tokens keep the router.
        """
        trace = None if picks is None else torch.from_numpy(picks.astype(np.int16))
        self._trace = None if trace is None else trace.to(self.model.device)

    def take_seat(self) -> Seat:
        """A seat for a session; the planned one where it is free."""
        if not self._free_seats:
            gc.collect()  # a stream that was left before its end holds its session in a cycle
        seat = self._free_seats.pop() if self._free_seats else self.seat(1)
        if not seat.follows(self._trace):
            seat.follow(self._trace)
        return seat

    def give_seat(self, seat: Seat) -> None:
        """Take a seat back; one is kept, with its captured steps."""
        if not self._free_seats:
            self._free_seats.append(seat)

    def session(self, n_ctx: int) -> DeviceSession:
        return DeviceSession(self, n_ctx)

    def sequences(self, n_seqs: int, n_ctx: int) -> DeviceSequences:
        del n_ctx  # the kernels' tables are as long as the runner's
        planned, self._sequences = self._sequences, None
        return planned if planned and len(planned.tokens) == n_seqs else DeviceSequences(self, n_seqs)

    def feed_chunk(
        self, ops: DeviceOps, seq: int, tokens: Sequence[int], start: int, n_prompt: int
    ) -> torch.Tensor | None:
        """Store a chunk of a prompt of `n_prompt` tokens -> logits [1, n_vocab] of the prompt's last, where it is in the chunk."""
        with self._meter.phase("prompt", len(tokens)):
            *_, logits = self.prompt(ops, tokens, start, [n_prompt - 1], n_prompt=n_prompt, seq=seq)
        return logits if len(logits) else None

    def feed(self, ops: DeviceOps, tokens: Sequence[int], start: int) -> torch.Tensor:
        """Store a prompt's tokens from position `start` on -> logits [1, n_vocab] of the last."""
        with self._meter.phase("prompt", len(tokens)):
            for logits in self.prompt(ops, tokens, start, [start + len(tokens) - 1]):
                last = logits
        return last

    def step(self, seat: Seat, n_rows: int = 1) -> None:
        """Start a decode step of a seat in which so many rows take part."""
        self._meter.tokens(n_rows)
        seat.step()

    def compute(self, seat: Seat, n_rows: int) -> NDArray[np.float32]:
        """A step of a seat whose tokens the host draws -> logits float32 [n_rows, n_vocab] of its first rows."""
        self._meter.tokens(n_rows)
        return seat.compute()[:n_rows].cpu().numpy()

    def resize_cache(self, n_slots: Sequence[int]) -> None:
        self.model.cache.resize(n_slots)

    def expert_map(self) -> ExpertMap:
        return self.model.cache.expert_map()

    def note_unused(self, steps: int, *, idle: bool) -> None:
        """Count steps whose token nobody took: they ran ahead of an end that only the host could see. Idle ones did nothing."""
        self._meter.tokens(-steps if idle else 0)
        self._unused_steps += 0 if idle else steps

    def stats(self) -> Stats:
        slots = sum(self.model.cache.shape.n_slots)
        reason = "" if slots else "the expert cache has no slots: every expert is fetched for every token"
        reason = reason if self.model.config.n_experts else DENSE
        cache, unused = self.model.cache, self._unused_steps
        return self._meter.stats(
            active=slots > 0, reason=reason, fetch_ms=cache.fetch_ms(), unused_steps=unused, prefetched=cache.prefetched()
        )  # fmt: skip

    def reset_stats(self) -> None:
        self.model.cache.reset_stats()
        self._meter.reset()
        self._unused_steps = 0

    def reset_cache(self) -> None:
        self.model.cache.reset()
        self._meter.reset()
        self._unused_steps = 0
