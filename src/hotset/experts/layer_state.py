"""The cache state of one layer: what the policy keeps of its experts, and which of them are resident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import InputError
from hotset.experts.policy import STATIC
from hotset.experts.request import request
from hotset.kernels.rows import REAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hotset.experts.policy import Policy


@dataclass(frozen=True)
class Decision:
    """What one request of a layer came to; arrays are copies."""

    location: NDArray[np.int32]
    fetch_expert: NDArray[np.int32]
    fetch_location: NDArray[np.int32]
    hits: int
    misses: int
    overflows: int


class LayerState:
    """The cache state of one layer: scores and residency, which carry over from one request to the next."""

    def __init__(
        self, policy: Policy, n_experts: int, n_slots: int, max_rows: int, run: Callable[..., int] = request
    ) -> None:
        self.policy = policy
        self.n_slots = n_slots
        self.decay = policy.decay_table(max_rows)
        self.step = np.zeros(1, np.int32)
        self.scores = np.zeros((policy.kind.n_scores, n_experts), policy.kind.score_type)
        self.slot_of_expert = np.full(n_experts, -1, np.int32)
        self._run = run
        self.reset()

    @property
    def score(self) -> NDArray[Any]:
        """The score that decides, of every expert."""
        first: NDArray[Any] = self.scores[0]
        return first

    @property
    def expert_of_slot(self) -> NDArray[np.int32]:
        """The expert in each slot, -1 where it is empty."""
        expert_of = np.full(self.n_slots, -1, np.int32)
        resident = np.flatnonzero(self.slot_of_expert >= 0)
        expert_of[self.slot_of_expert[resident]] = resident
        return expert_of

    def reset(self) -> None:
        """Forget scores and residency; `static` starts with experts 0, 1, ... since nothing would ever come in."""
        self.step[:] = 0
        self.scores[:] = 0
        self.slot_of_expert[:] = -1
        if self.policy.kind.code == STATIC:
            self.seed(range(self.n_slots))

    def seed(self, experts: Sequence[int]) -> None:
        """Make exactly these experts resident, in slots 0, 1, ...; scores stay as they are."""
        chosen = check_seed(experts, self.score.size, self.n_slots)
        self.slot_of_expert[:] = -1
        self.slot_of_expert[chosen] = np.arange(len(chosen))

    def request(self, picks: NDArray[np.int32], row_mask: NDArray[np.int32] | None = None) -> Decision:
        """Decide on picks [rows, k]; row_mask as in kernels/rows.py, by default all are real."""
        row_mask = np.full(len(picks), REAL, np.int32) if row_mask is None else row_mask
        location = np.empty(picks.shape, np.int32)
        expert, target = np.empty((2, picks.size), np.int32)
        counters = np.zeros(4, np.int64)
        n = self._run(
            self.policy.kind.code,
            self.n_slots,
            self.decay,
            picks,
            row_mask,
            self.step,
            self.scores,
            self.slot_of_expert,
            location,
            expert,
            target,
            counters,
        )
        hits, misses, overflows, _ = counters.tolist()
        return Decision(location, expert[:n], target[:n], hits, misses, overflows)

    def check(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        taken = np.sort(self.slot_of_expert[self.slot_of_expert >= 0])
        assert len(taken) <= self.n_slots, f"{len(taken)} experts are resident in {self.n_slots} slots"
        assert np.array_equal(taken, np.arange(len(taken))), f"slots taken are {taken}, not 0, 1, ... once each"
        assert np.all(self.slot_of_expert >= -1), f"a slot below -1 in {self.slot_of_expert}"
        assert np.all(self.scores >= 0), f"a score below 0 or not a number in {self.scores}"


def check_seed(experts: Sequence[int], n_experts: int, n_slots: int) -> list[int]:
    """Return the experts to start with, refused unless they are distinct, exist and fit."""
    chosen = [int(e) for e in experts]
    if len(set(chosen)) != len(chosen) or len(chosen) > n_slots or any(not 0 <= e < n_experts for e in chosen):
        raise InputError(f"experts to start with {chosen}: give at most {n_slots} distinct numbers below {n_experts}")
    return chosen
