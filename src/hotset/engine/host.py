"""The CPU runner."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import NDArray

from hotset.engine.memory import check_host_room, kv_bytes
from hotset.engine.runner import Drawn, Mode, TokenMask
from hotset.engine.sampling import sample
from hotset.engine.stats import DENSE, Meter, Stats
from hotset.errors import InputError
from hotset.experts.host_cache import HostCache
from hotset.host.activation import PARALLEL_FROM
from hotset.host.matmul import AT_ONCE
from hotset.model.batch import Batch, prompt_batch, step_batch
from hotset.model.host_kv import HostKV
from hotset.model.host_ops import HostOps, HostRouting
from hotset.model.kv import DEFAULT, FLOAT32, KVTypes
from hotset.model.transformer import forward

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.host_sequences import HostSequences
    from hotset.experts.bank import ExpertBank
    from hotset.experts.expert_map import ExpertMap
    from hotset.experts.policy import Policy
    from hotset.experts.slots import CacheShape
    from hotset.model.config import ModelConfig
    from hotset.model.weights import Weights

# Rows of a prompt computed at once: enough for every expert to serve several, few enough that their activations stay in the CPU's caches.
CHUNK = 256
REASON = "experts are computed in host memory; the counts say what a GPU cache of this size would have done"
# Numba's threads take orders from one thread at a time.
_LOCK = threading.Lock()


@dataclass(frozen=True, eq=False)
class HostModel:
    """A loaded model in host memory."""

    config: ModelConfig
    weights: Weights
    bank: ExpertBank
    cache: HostCache


class HostRunner:
    """See runner.Runner."""

    device = "cpu"

    def __init__(self, model: HostModel, threads: int, kv_types: KVTypes = DEFAULT) -> None:
        self.model = model
        self.threads = threads
        self._kv_types: dict[Mode, KVTypes] = {"fast": kv_types, "reference": FLOAT32}
        self._meter = Meter(model.cache)
        self._trace: NDArray[np.int16] | None = None

    @property
    def shape(self) -> CacheShape:
        return self.model.cache.shape

    def beside(
        self, n_slots: Sequence[int], policy: Policy, *, threads: int | None = None, bus_factor: int = 1
    ) -> HostRunner:
        if bus_factor != 1:
            raise InputError(
                f"bus factor {bus_factor}: the CPU engine computes experts where they lie and uses no bus; leave it out, or run on a GPU"
            )
        cache = HostCache(replace(self.shape, n_slots=tuple(n_slots)), policy)
        return HostRunner(replace(self.model, cache=cache), threads or self.threads, self._kv_types["fast"])

    def set_routing(self, picks: NDArray[np.integer[Any]] | None) -> None:
        self._trace = None if picks is None else picks.astype(np.int16)

    @property
    def cache(self) -> HostCache:
        return self.model.cache

    def ops(self, kv: HostKV, mode: Mode) -> HostOps:
        """The ops over given keys and values."""
        return HostOps(self.model.config, self.model.bank, self.model.cache, kv, fast=mode == "fast")

    def kv(self, n_ctx: int, mode: Mode, n_seqs: int = 1) -> HostKV:
        """Empty keys and values for `n_seqs` sequences."""
        types = self._kv_types[mode]
        check_host_room(n_ctx, kv_bytes(self.model.config, n_ctx, n_seqs, types))
        return HostKV(self.model.config, n_ctx, n_seqs, types)

    def forward(self, ops: HostOps, batch: Batch) -> NDArray[np.float32]:
        """Logits float32 [n_wanted, n_vocab] of a batch."""
        with _LOCK:
            numba.set_num_threads(self.threads)
            return np.asarray(forward(ops, self.model.weights, batch)[:, : self.model.config.n_vocab])

    def warm_up(self) -> None:
        """Compile what generating runs: seconds on the first start on a machine, a moment later, when it is read from disk."""
        # A prompt of so many rows takes what short ones take, what serves many rows, and what is left of a group.
        n = PARALLEL_FROM + AT_ONCE + 1
        session = self.session(n + 1)
        session.feed([0] * n)
        self.step(session.ops, step_batch([0], [n]))
        self.reset_cache()

    def logits(
        self, tokens: Sequence[int], wanted: Sequence[int], mode: Mode, *, stepwise: bool
    ) -> NDArray[np.float32]:
        ops = self.ops(self.kv(len(tokens), mode), mode)
        chunk = 1 if stepwise else CHUNK
        asked = np.asarray(wanted, np.int64)
        out = np.empty((asked.size, self.model.config.n_vocab), np.float32)
        with self._meter.phase("prompt", len(tokens)):
            for start in range(0, len(tokens), chunk):
                inside = (asked >= start) & (asked < start + chunk)
                batch = prompt_batch(tokens[start : start + chunk], start, wanted=asked[inside] - start)
                out[inside] = self.forward(ops, batch)
        return out

    def session(self, n_ctx: int) -> HostSession:
        session = HostSession(self, n_ctx)
        if self._trace is not None:
            session.ops.routing = HostRouting(self._trace, np.zeros(1, np.int64))
        return session

    def sequences(self, n_seqs: int, n_ctx: int) -> HostSequences:
        from hotset.engine.host_sequences import HostSequences

        return HostSequences(self, n_seqs, n_ctx)

    def feed(self, ops: HostOps, tokens: Sequence[int], start: int) -> NDArray[np.float32]:
        """Store a prompt's tokens from position `start` on -> logits float32 [n_vocab] of the last."""
        for at in range(0, len(tokens), CHUNK):
            part = tokens[at : at + CHUNK]
            last = [len(part) - 1] if at + CHUNK >= len(tokens) else []
            logits = self.feed_chunk(ops, prompt_batch(part, start + at, wanted=last))
        last_row: NDArray[np.float32] = logits[0]
        return last_row

    def feed_chunk(self, ops: HostOps, batch: Batch) -> NDArray[np.float32]:
        """Store a chunk of a prompt -> logits float32 [n_wanted, n_vocab]."""
        with self._meter.phase("prompt", batch.n_rows):
            return self.forward(ops, batch)

    def step(self, ops: HostOps, batch: Batch) -> NDArray[np.float32]:
        """One decode step of the batch's sequences -> logits float32 [m, n_vocab]."""
        self._meter.tokens(batch.n_rows)
        return self.forward(ops, batch)

    def resize_cache(self, n_slots: Sequence[int]) -> None:
        self.model.cache.resize(n_slots)

    def expert_map(self) -> ExpertMap:
        return self.model.cache.expert_map()

    def stats(self) -> Stats:
        return self._meter.stats(active=False, reason=REASON if self.model.config.n_experts else DENSE, fetch_ms=None)

    def reset_stats(self) -> None:
        self.model.cache.reset_stats()
        self._meter.reset()

    def reset_cache(self) -> None:
        self.model.cache.reset()
        self._meter.reset()


class HostSession:
    """See runner.Session."""

    def __init__(self, runner: HostRunner, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.tokens: list[int] = []
        self._runner = runner
        self.ops = runner.ops(runner.kv(n_ctx, "fast"), "fast")
        self._stored = 0
        # Where the answer's first decode step is.
        self._begins_at = 0
        self._logits: NDArray[np.float32] | None = None

    def start(self, params: SamplingParams, seed: int, end_ids: frozenset[int], mask: TokenMask | None = None) -> None:
        self._params, self._seed, self._end_ids, self._mask = params, seed, end_ids, mask

    def keep(self, n: int) -> None:
        del self.tokens[n:]
        # A state cannot be cut back: it is computed anew from the first token on.
        is_cut = n < self._stored and self._runner.model.config.state_elements > 0
        self._stored = 0 if is_cut else min(self._stored, n)
        self._logits = None

    def feed(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        left = self.tokens[self._stored :]
        self._logits = self._runner.feed(self.ops, left, self._stored)
        self._stored += len(left)
        self._n_prompt = self._begins_at = len(self.tokens)

    def begin(self, token: int, *, trace_at: int = 0) -> None:
        self.tokens, self._stored, self._begins_at = [token], 0, 0
        if self.ops.routing is not None:
            self.ops.routing.offsets[0] = trace_at

    def next(self) -> Drawn:
        if self._stored < len(self.tokens) or self._logits is None:
            position = len(self.tokens) - 1
            batch = step_batch(self.tokens[-1:], [position], begins=[position == self._begins_at])
            self._logits = self._runner.step(self.ops, batch)[0]
            self._stored = len(self.tokens)
        mask = self._mask(self.tokens[self._n_prompt :]) if self._mask else None
        token = sample(self._logits, self._params, self.tokens, self._seed, len(self.tokens), mask)
        self.tokens.append(token)
        return Drawn(token, token in self._end_ids)
