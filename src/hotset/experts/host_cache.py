"""The expert cache of the CPU engine: experts are computed where they lie, and the policy says what a GPU cache would have hit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hotset.experts.expert_map import ExpertMap, expert_map
from hotset.experts.layer_state import LayerState
from hotset.experts.request import compiled_kept_request, compiled_request
from hotset.experts.stats import CacheStats, cache_stats
from hotset.kernels.rows import REAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hotset.experts.policy import Policy
    from hotset.experts.slots import CacheShape

Entry = TypeVar("Entry", bound=np.generic)
NO_WEIGHTS = np.empty((0, 0), np.float32)


class HostCache:
    """Runs the policy on the picks of every request, and moves nothing."""

    def __init__(self, shape: CacheShape, policy: Policy, *, ring_steps: int = 0) -> None:
        self.policy = policy
        self._make_layers(shape)
        self._counters = np.zeros((shape.n_layers, 4), np.int64)
        self._ring = np.full((ring_steps, shape.n_layers, shape.max_rows, shape.k), -1, np.int16)
        self._weight_ring = np.zeros(self._ring.shape, np.float32)
        self._all_real = np.full(shape.max_rows, REAL, np.int32)
        self._location = np.empty((shape.max_rows, shape.k), np.int32)
        self._fetch = np.empty((2, shape.max_rows * shape.k), np.int32)
        # Rings are written where the request is decided: a step of a small model would take a twentieth longer if NumPy wrote them.
        self._request: Callable[..., int] = compiled_kept_request() if ring_steps else compiled_request()
        of_layer = [(self._ring[:, layer], self._weight_ring[:, layer]) for layer in range(shape.n_layers)]
        self._rings = of_layer if ring_steps else []

    def _make_layers(self, shape: CacheShape) -> None:
        self.shape = shape
        self._layers = [
            LayerState(self.policy, n_experts, n_slots, shape.max_rows)
            for n_experts, n_slots in zip(shape.n_experts, shape.n_slots, strict=True)
        ]

    def resize(self, n_slots: Sequence[int]) -> None:
        """Give each layer so many slots, all empty; counts and scores stay."""
        before = self._layers
        self._make_layers(replace(self.shape, n_slots=tuple(n_slots)))
        for state, old in zip(self._layers, before, strict=True):
            state.step[:], state.scores[:] = old.step, old.scores

    def lookup(
        self,
        layer: int,
        picks: NDArray[np.int32],
        row_mask: NDArray[np.int32] | None = None,
        weights: NDArray[np.float32] = NO_WEIGHTS,
    ) -> None:
        """Note picks int32 [rows, k] of one request of a layer; row_mask as in kernels/rows.py, by default all are real. `weights` are only recorded."""
        state = self._layers[layer]
        rows = len(picks)
        real = self._all_real[:rows] if row_mask is None else row_mask
        kept = (*self._rings[layer], weights) if self._rings else ()
        self._request(
            *kept,
            self.policy.kind.code,
            state.n_slots,
            state.decay,
            picks,
            real,
            state.step,
            state.scores,
            state.slot_of_expert,
            self._location[:rows],
            self._fetch[0],
            self._fetch[1],
            self._counters[layer],
        )

    def seed(self, layer: int, experts: Sequence[int]) -> None:
        """Make exactly these experts of a layer resident."""
        self._layers[layer].seed(experts)

    def start_from(self, layer: int, experts: Sequence[int], scores: NDArray[Any]) -> None:
        """Make exactly these experts resident, and give the layer's experts scores [n_scores, experts] to begin with."""
        self.seed(layer, experts)
        self._layers[layer].scores[:] = scores

    def scores(self) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
        """Return every layer's scores [n_scores, experts], and the steps of every layer."""
        return [state.scores for state in self._layers], np.array([int(s.step[0]) for s in self._layers], np.int64)

    def state(self, layer: int) -> LayerState:
        """Scores and residency of a layer."""
        return self._layers[layer]

    def stats(self) -> CacheStats:
        """Return the counts since the last reset."""
        return cache_stats(self._counters, self.shape, self.policy)

    def expert_map(self) -> ExpertMap:
        """Copy what is resident and how warm."""
        return expert_map(self.policy, self._layers, self.recorded_picks())

    def recorded_picks(self) -> NDArray[np.int16]:
        """Return picks [steps, layers, max_rows, k] of the last steps that the ring holds, oldest first; -1 in padded rows."""
        return unroll_ring(self._ring, self.n_steps)

    def recorded_weights(self) -> NDArray[np.float16] | None:
        """Return the pick weights of the same steps and rows, as they were given to `lookup`."""
        return unroll_ring(self._weight_ring, self.n_steps).astype(np.float16)

    @property
    def n_steps(self) -> int:
        """Steps since the last reset, recorded or not."""
        return max((int(state.step[0]) for state in self._layers), default=0)

    def reset_stats(self) -> None:
        """Count from zero again; scores and residency stay."""
        self._counters[:] = 0

    def reset(self) -> None:
        """As new: cold and with nothing counted or recorded."""
        self.reset_stats()
        self._ring[:] = -1
        for state in self._layers:
            state.reset()


def unroll_ring(ring: NDArray[Entry], steps: int) -> NDArray[Entry]:
    """Return the last entries of a ring in the order in which they were written, `steps` of them in all."""
    if steps <= len(ring):
        return ring[:steps].copy()
    return np.roll(ring, -(steps % len(ring)), axis=0) if len(ring) else ring.copy()
