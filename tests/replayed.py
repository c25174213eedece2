"""What the reference makes of the picks that an expert cache recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.experts.layer_state import LayerState

if TYPE_CHECKING:
    from collections.abc import Sequence


def replayed_states(cache: Any, marks: Sequence[Sequence[int]]) -> list[LayerState]:
    """Every layer from a cold start; marks[i] are the row mask of step i, as far as it has rows."""
    shape, picks = cache.shape, cache.recorded_picks()
    assert len(picks) == len(marks) == cache.n_steps
    states = [
        LayerState(cache.policy, n, slots, shape.max_rows)
        for n, slots in zip(shape.n_experts, shape.n_slots, strict=True)
    ]
    for step, mask in zip(picks, marks, strict=True):
        for layer, state in enumerate(states):
            state.request(np.maximum(step[layer, : len(mask)], 0).astype(np.int32), np.array(mask, np.int32))
    return states


def assert_as_replayed(cache: Any, marks: Sequence[Sequence[int]]) -> None:
    """Scores, to the last bit, and residency are those that the reference comes to."""
    for layer, state in enumerate(replayed_states(cache, marks)):
        live = cache.state(layer)
        assert live.scores.tobytes() == state.scores.tobytes()
        assert np.array_equal(live.slot_of_expert, state.slot_of_expert)
