"""Replay recorded picks through the policy: what a cache of a given size would have hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import InputError
from hotset.experts.policy import LayerState, Policy, compiled_replay
from hotset.experts.stats import CacheCounts, counter_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hotset.experts.trace import Trace


def simulate(trace: Trace, n_slots: int | Sequence[int], policy: Policy, rows: int = 1) -> CacheCounts:
    """Count per layer from a cold start; n_slots for all layers or one number each; `rows` answers run side by side as one batch."""
    slots = [n_slots] * trace.n_layers if isinstance(n_slots, int) else list(n_slots)
    if len(slots) != trace.n_layers or any(not 0 <= n <= trace.n_experts for n in slots):
        raise InputError(
            f"slots {slots}: give 0 to {trace.n_experts} for each of the {trace.n_layers} layers of the trace"
        )
    if rows < 1:
        raise InputError(f"rows {rows}: give at least 1")
    tokens = batch_tokens(trace.offsets, rows)
    counters = np.zeros((trace.n_layers, 4), np.int64)
    replay = compiled_replay()
    for layer, n in enumerate(slots):
        state = LayerState(policy, trace.n_experts, n, rows)
        experts = np.ascontiguousarray(trace.experts[:, layer], np.int32)
        replay(policy.kind.code, n, state.decay, experts, tokens, state.score, state.slot_of_expert, counters[layer])
    return CacheCounts(*counter_columns(counters))


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
