"""The GPU runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from hotset.engine.runner import Drawn, Mode
from hotset.engine.sampling import no_token
from hotset.engine.stats import Meter, Stats
from hotset.kernels.rows import Rows
from hotset.kernels.sampler import ENDED, NO_TOKEN, Sampler
from hotset.model.device_ops import MAX_ROWS, DeviceBatch, DeviceKV, DeviceOps, Scratch
from hotset.model.transformer import forward

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.experts.bank import ExpertBank
    from hotset.experts.cache import ExpertCache
    from hotset.model.config import ModelConfig
    from hotset.model.weights import Weights

# The time of fetches is taken on every so many-th decode step: reading two events per layer costs as much as a small layer.
TIMED_EVERY = 16


@dataclass(frozen=True, eq=False)
class DeviceModel:
    """A loaded model: weights and cache on the device, experts in page-locked host memory."""

    config: ModelConfig
    weights: Weights
    bank: ExpertBank
    cache: ExpertCache
    device: torch.device


class DeviceRunner:
    """See runner.Runner."""

    device = "cuda"

    def __init__(self, model: DeviceModel, n_ctx: int) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self._scratch = {mode: Scratch(model.device, fast=mode == "fast") for mode in ("fast", "reference")}
        self._free_kv = [self.kv(n_ctx, "fast")]
        self._meter = Meter(model.cache)
        self._timer = FetchTimer(model.config.n_layers, enabled=model.device.type == "cuda")

    def kv(self, n_ctx: int, mode: Mode, n_seqs: int = 1) -> DeviceKV:
        """Empty keys and values for `n_seqs` sequences."""
        return DeviceKV(self.model.config, n_ctx, n_seqs, self.model.device, half=mode == "fast")

    def ops(self, kv: DeviceKV, mode: Mode) -> DeviceOps:
        """The ops over given keys and values."""
        return DeviceOps(self.model.config, self.model.cache, kv, self._scratch[mode])

    def forward(self, ops: DeviceOps, batch: DeviceBatch) -> torch.Tensor:
        """Logits float32 [n_wanted, n_vocab] of a batch, on the device."""
        logits: torch.Tensor = forward(ops, self.model.weights, batch)
        return logits[:, : self.model.config.n_vocab]

    def rows(self, tokens: Sequence[int], positions: Sequence[int], seqs: Sequence[int] | None = None) -> Rows:
        """Rows of given tokens, sequence 0 unless said otherwise."""
        table = [list(tokens), list(positions), list(seqs or [0] * len(tokens)), [1] * len(tokens)]
        return Rows(*torch.tensor(table, dtype=torch.int32, device=self.model.device))

    def prompt(
        self, ops: DeviceOps, tokens: Sequence[int], start: int, wanted: Sequence[int], chunk: int = MAX_ROWS
    ) -> Iterator[torch.Tensor]:
        """Store tokens from position `start` on; yields the logits of the wanted positions, chunk by chunk."""
        for at in range(0, len(tokens), chunk):
            part = tokens[at : at + chunk]
            rows = self.rows(part, range(start + at, start + at + len(part)))
            asked = tuple(w - start - at for w in wanted if start + at <= w < start + at + len(part))
            yield self.forward(ops, DeviceBatch(rows, asked if len(asked) < len(part) else None))

    def logits(
        self, tokens: Sequence[int], wanted: Sequence[int], mode: Mode, *, stepwise: bool
    ) -> NDArray[np.float32]:
        asked = np.asarray(wanted, np.int64)
        order = np.argsort(asked, kind="stable")
        out = np.empty((asked.size, self.model.config.n_vocab), np.float32)
        ops = self.ops(self.kv(len(tokens), mode), mode)
        done = 0
        with self._meter.phase("prompt", len(tokens)):
            for logits in self.prompt(ops, tokens, 0, sorted(asked.tolist()), 1 if stepwise else MAX_ROWS):
                out[order[done : done + len(logits)]] = logits.cpu().numpy()
                done += len(logits)
        return out

    def take_kv(self) -> DeviceKV:
        """Keys and values for a session; the planned ones where they are free."""
        return self._free_kv.pop() if self._free_kv else self.kv(self.n_ctx, "fast")

    def give_kv(self, kv: DeviceKV) -> None:
        if not self._free_kv:
            self._free_kv.append(kv)

    def session(self, n_ctx: int) -> DeviceSession:
        return DeviceSession(self, n_ctx)

    def feed(self, ops: DeviceOps, tokens: Sequence[int], start: int) -> torch.Tensor:
        """Store a prompt's tokens from position `start` on -> logits [1, n_vocab] of the last."""
        with self._meter.phase("prompt", len(tokens)):
            for logits in self.prompt(ops, tokens, start, [start + len(tokens) - 1]):
                last = logits
        return last

    def step(self, ops: DeviceOps, rows: Rows) -> torch.Tensor:
        """One decode step on rows that are on the device already -> logits."""
        self._meter.tokens(len(rows))
        ops.on_fetch = self._timer.begin_step()
        logits = self.forward(ops, DeviceBatch(rows))
        ops.on_fetch = None
        return logits

    def stats(self) -> Stats:
        slots = sum(self.model.cache.shape.n_slots)
        reason = "" if slots else "the expert cache has no slots: every expert is fetched for every token"
        return self._meter.stats(active=slots > 0, reason=reason, fetch_ms=self._timer.total_ms())

    def reset_stats(self) -> None:
        self.model.cache.reset_stats()
        self._meter.reset()
        self._timer.reset()

    def reset_cache(self) -> None:
        self.model.cache.reset()
        self._meter.reset()
        self._timer.reset()


class FetchTimer:
    """How long the GPU spent in fetches: measured on every TIMED_EVERY-th decode step, scaled to all of them."""

    def __init__(self, n_layers: int, *, enabled: bool) -> None:
        layers = range(n_layers if enabled else 0)
        self._events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in layers]
        self.reset()

    def reset(self) -> None:
        self._steps = self._timed = 0
        self._ms = 0.0
        self._open = False

    def begin_step(self) -> Callable[[int, bool], None] | None:
        """Count a step; returns what to call at a layer's fetch (layer, begins) where this step is timed."""
        self._collect()
        self._steps += 1
        if not self._events or (self._steps - 1) % TIMED_EVERY:
            return None
        self._open = True
        return lambda layer, begins: self._events[layer][0 if begins else 1].record()

    def _collect(self) -> None:
        if self._open:
            self._events[-1][1].synchronize()
            self._ms += sum(begin.elapsed_time(end) for begin, end in self._events)
            self._timed += 1
            self._open = False

    def total_ms(self) -> float | None:
        """Milliseconds over all steps, None before the first."""
        self._collect()
        return self._ms / self._timed * self._steps if self._timed else None


class DeviceSession:
    """See runner.Session. The drawn token stays on the device and is the next step's input; the host reads it to show it."""

    def __init__(self, runner: DeviceRunner, n_ctx: int) -> None:
        self.n_ctx = min(n_ctx, runner.n_ctx)
        self.tokens: list[int] = []
        self._runner = runner
        self._kv = runner.take_kv()
        self._ops = runner.ops(self._kv, "fast")
        self._rows = runner.rows([0], [0])
        self._stored = 0
        self._logits: torch.Tensor | None = None

    def __del__(self) -> None:
        if hasattr(self, "_kv"):
            self._runner.give_kv(self._kv)

    def start(self, params: SamplingParams, seed: int, end_ids: frozenset[int]) -> None:
        model = self._runner.model
        self._params, self._seed = params, seed
        self._sampler = Sampler(1, 1, model.config.n_vocab, sorted(end_ids), model.device)
        self._started = False

    def keep(self, n: int) -> None:
        del self.tokens[n:]
        self._stored = min(self._stored, n)
        self._logits = None

    def feed(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        left = self.tokens[self._stored :]
        self._logits = self._runner.feed(self._ops, left, self._stored)
        self._stored += len(left)
        self._rows = self._runner.rows([self.tokens[-1]], [len(self.tokens) - 1])
        self._sampler.start(0, self._params, self._seed, self.tokens)

    def next(self) -> Drawn:
        if self._logits is None or self._stored < len(self.tokens):
            self._logits = self._runner.step(self._ops, self._rows)
            self._stored = len(self.tokens)
        if self._params.is_greedy:
            self._sampler.greedy(self._logits, self._rows)
        else:
            self._sampler.draw(self._logits, self._rows)
        token, state = torch.cat([self._rows.tokens, self._sampler.done]).tolist()
        if state == NO_TOKEN:
            raise no_token("every logit is NaN or forbidden")
        self.tokens.append(token)
        return Drawn(token, state == ENDED)
