"""Replay recorded picks through the expert cache's own policy: what a cache of a given size would have hit, and whether a run hit what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import InputError
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy
from hotset.experts.request import compiled_replay
from hotset.experts.slots import CacheShape
from hotset.experts.stats import CacheCounts, counter_columns
from hotset.experts.trace_file import PHASES, Phase, PhaseCounts
from hotset.kernels.rows import BEGINS, REAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hotset.experts.trace import Trace
    from hotset.experts.trace_file import RecordedRun


def simulate(trace: Trace, n_slots: int | Sequence[int], policy: Policy, rows: int = 1) -> CacheCounts:
    """Count per layer from a cold start; n_slots for all layers or one number each; `rows` answers run side by side as one batch.

    The first token of each answer is its border, for policies that forget there.
    """
    slots = [n_slots] * trace.n_layers if isinstance(n_slots, int) else list(n_slots)
    if len(slots) != trace.n_layers or any(not 0 <= n <= trace.n_experts for n in slots):
        raise InputError(
            f"slots {slots}: give 0 to {trace.n_experts} for each of the {trace.n_layers} layers of the trace"
        )
    if rows < 1:
        raise InputError(f"rows {rows}: give at least 1")
    tokens = batch_tokens(trace.offsets, rows)
    group = np.zeros(len(tokens), np.uint8)
    shape = CacheShape((256,) * trace.n_layers, (trace.n_experts,) * trace.n_layers, tuple(slots), trace.k, rows)
    marks = np.full(trace.n_tokens, REAL, np.int32)
    marks[trace.offsets[:-1][np.diff(trace.offsets) > 0]] = BEGINS
    return CacheCounts(*counter_columns(_replayed(shape, policy, trace.experts, tokens, marks, group, 1)[:, 0]))


def replay_run(run: RecordedRun) -> dict[Phase, PhaseCounts]:
    """Count what the expert cache of a recorded run must have counted, from its picks and settings alone, up to its last counters."""
    n, shape = run.counted_steps, run.header.shape
    place = np.arange(shape.max_rows)
    starts = run.starts[:n, None]
    tokens = np.where(place < np.diff(run.starts)[:n, None], starts + place, -1)
    policy = Policy.parse(run.header.policy)
    marks = np.where(run.begins_answer, BEGINS, REAL).astype(np.int32)
    counters = _replayed(shape, policy, run.picks, tokens, marks, run.phases[:n], len(PHASES))
    return {phase: _phase_counts(counters[:, i], shape) for i, phase in enumerate(PHASES)}


def _phase_counts(counters: NDArray[np.int64], shape: CacheShape) -> PhaseCounts:
    hits, misses, overflows, _ = counter_columns(counters)
    return PhaseCounts(hits, misses, overflows, sum(m * span for m, span in zip(misses, shape.span_bytes, strict=True)))


def _replayed(
    shape: CacheShape,
    policy: Policy,
    experts: NDArray[Any],
    tokens: NDArray[np.int64],
    marks: NDArray[np.int32],
    group: NDArray[np.uint8],
    n_groups: int,
) -> NDArray[np.int64]:
    """Counters [layers, groups, 4] of requests `tokens` [requests, rows] of `experts` [tokens, layers, k] and `marks` [tokens], from a cold start."""
    counters = np.zeros((shape.n_layers, n_groups, 4), np.int64)
    replay = compiled_replay()
    for layer, (n_experts, n_slots) in enumerate(zip(shape.n_experts, shape.n_slots, strict=True)):
        state = LayerState(policy, n_experts, n_slots, shape.max_rows)
        picks = np.ascontiguousarray(experts[:, layer], np.int32)
        replay(
            policy.kind.code, n_slots, state.decay, picks, tokens, marks, group, state.scores, state.slot_of_expert, counters[layer]
        )  # fmt: skip
    return counters


def batch_tokens(offsets: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Token numbers [requests, rows] when each answer joins the row that is free first; -1 where a row has run out."""
    streams: list[list[NDArray[np.int64]]] = [[] for _ in range(rows)]
    length = [0] * rows
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        row = length.index(min(length))
        streams[row].append(np.arange(start, end))
        length[row] += end - start
    tokens = np.full((max(length), rows), -1, np.int64)
    for row, parts in enumerate(streams):
        if parts:
            tokens[: length[row], row] = np.concatenate(parts)
    return tokens
