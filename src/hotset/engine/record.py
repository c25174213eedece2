"""Record what a run picks into a trace file, with the counters of the expert cache, so that the run can be replayed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from hotset.errors import InputError
from hotset.experts.trace_file import Phase, PhaseCounts, TraceHeader, TraceWriter
from hotset.model.batch import MAX_ROWS
from hotset.version import __version__

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.engine import Engine
    from hotset.engine.stats import PhaseStats, Stats
    from hotset.experts.slots import CacheShape

# Steps that the cache must keep until they are written: `load(record_steps=RING_STEPS)`.
RING_STEPS = 64


class RecordingCache(Protocol):
    """An expert cache that keeps the picks of its last steps: HostCache or ExpertCache."""

    shape: CacheShape

    @property
    def n_steps(self) -> int: ...

    def recorded_picks(self) -> NDArray[np.int16]: ...

    def recorded_weights(self) -> NDArray[np.float16] | None: ...


def record(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    path: Path,
    *,
    model_hash: str,
    n_decode: int,
    sampling: SamplingParams,
    progress: Callable[[int], None] = lambda _answers: None,
) -> Stats:
    """Feed each prompt to an expert cache that begins empty, run up to `n_decode` decode steps, and write every step's picks to `path`.

    The engine must keep RING_STEPS steps. Prompts go through the expert cache like decode steps, at most 8 tokens at a time, also where
    a run would stream a long prompt past it. Returns what the cache did.
    """
    if not all(len(prompt) for prompt in prompts):
        raise InputError("a prompt is empty; give each at least one token")
    engine.runner.reset_cache()
    cache = engine.runner.cache
    seed = sampling.seed if sampling.seed is not None else secrets.randbits(64)
    with TraceWriter(path, trace_header(engine, model_hash)) as writer:
        drain = Drain(cache, writer)
        for n, prompt in enumerate(prompts):
            writer.answer(len(prompt))
            record_answer(engine, prompt, n_decode, sampling, seed + n, drain)
            stats = engine.stats()
            writer.counts({"prompt": phase_counts(stats.prompt), "decode": phase_counts(stats)})
            progress(n + 1)
    return engine.stats()


def record_answer(
    engine: Engine, prompt: Sequence[int], n_decode: int, sampling: SamplingParams, seed: int, drain: Drain
) -> None:
    """One prompt and its continuation."""
    session = engine.session()
    session.start(sampling, seed, engine.end_ids)
    # The CPU computes many rows at once faster; a GPU streams more than 8 past the cache.
    piece = MAX_ROWS * (RING_STEPS // 2) if engine.device == "cpu" else MAX_ROWS
    for at in range(0, len(prompt), piece):
        session.feed(list(prompt[at : at + piece]))
        drain("prompt")
    # The first token comes from the prompt's logits: n steps draw n + 1.
    for _ in range(n_decode + 1 if n_decode else 0):
        drawn = session.next()
        drain("decode")
        if drawn.is_end:
            break


class Drain:
    """Moves steps from the cache's ring into the file."""

    def __init__(self, cache: RecordingCache, writer: TraceWriter) -> None:
        self._cache = cache
        self._writer = writer
        self._seen = cache.n_steps

    def __call__(self, phase: Phase) -> None:
        """Write the steps since the last call, all of one phase."""
        new = self._cache.n_steps - self._seen
        if not new:
            return
        picks, weights = self._cache.recorded_picks(), self._cache.recorded_weights()
        assert new <= len(picks), "the ring of recorded steps was overrun"
        self._seen += new
        for i in range(len(picks) - new, len(picks)):
            real = picks[i, 0, :, 0] >= 0
            self._writer.step(phase, picks[i][:, real], None if weights is None else weights[i][:, real])


def trace_header(engine: Engine, model_hash: str) -> TraceHeader:
    """The header of a trace of this engine's runs."""
    cache = engine.runner.cache
    shape = cache.shape
    return TraceHeader(
        model=engine.config.name,
        architecture=engine.config.architecture,
        model_hash=model_hash,
        made_by=f"hotset {__version__}, {engine.device}",
        policy=engine.stats().policy,
        span_bytes=shape.span_bytes,
        n_experts=shape.n_experts,
        n_slots=shape.n_slots,
        k=shape.k,
        max_rows=shape.max_rows,
        weights=cache.recorded_weights() is not None,
    )


def phase_counts(stats: PhaseStats | Stats) -> PhaseCounts:
    """A phase's counters as the file keeps them."""
    return PhaseCounts(
        hits=tuple(layer.hits for layer in stats.layers),
        misses=tuple(layer.misses for layer in stats.layers),
        overflows=tuple(layer.overflows for layer in stats.layers),
        bytes_fetched=stats.bytes_fetched,
    )
