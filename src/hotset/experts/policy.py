"""Which experts stay on the GPU: the exact reference that the lookup kernel must match, hit for hit and victim for victim.

The functions from `update_scores` to `replay` are one source for plain Python and for Numba (`compiled_request`, `compiled_replay`).
A policy is one branch of `update_scores`, one line of POLICIES and one branch of the lookup kernel.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

STATIC, LRU, LFU, LRFU = range(4)
MAX_HALF_LIFE = 1e6


@dataclass(frozen=True)
class PolicyKind:
    """A row of POLICIES: `code` is how compiled code knows the policy, `half_life` the default of those that take one."""

    code: int
    summary: str
    score_type: type[np.float32 | np.int32] = np.int32
    half_life: float | None = None


POLICIES: dict[str, PolicyKind] = {
    "lrfu": PolicyKind(LRFU, "recent use counts most, fading with a half-life in tokens", np.float32, 16.0),
    "lru": PolicyKind(LRU, "the least recently used leaves"),
    "lfu": PolicyKind(LFU, "the least often used leaves"),
    "static": PolicyKind(STATIC, "nothing moves: what is resident at the start stays"),
}


@dataclass(frozen=True)
class Policy:
    """A policy with its setting; `str` gives back what `parse` reads."""

    name: str = "lrfu"
    half_life: float | None = 16.0

    @staticmethod
    def parse(text: str) -> Policy:
        """Read `lrfu`, `lrfu:16`, `lru`, `lfu` or `static`."""
        name, colon, setting = str(text).strip().lower().partition(":")
        kind = POLICIES.get(name)
        if kind is None:
            raise InputError(f"cache policy {text!r} is unknown; there are {', '.join(POLICIES)}")
        if not colon:
            return Policy(name, kind.half_life)
        if kind.half_life is None:
            raise InputError(f"cache policy {text!r}: {name} takes no setting; write {name}")
        half_life = float(setting) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", setting) else 0.0
        if not 0 < half_life <= MAX_HALF_LIFE:
            raise InputError(
                f"cache policy {text!r}: the half-life must be a number of tokens above 0 and at most {MAX_HALF_LIFE:g}, as in {name}:16"
            )
        return Policy(name, half_life)

    def __str__(self) -> str:
        return self.name if self.half_life is None else f"{self.name}:{self.half_life:.15g}"

    @property
    def kind(self) -> PolicyKind:
        return POLICIES[self.name]

    def decay_table(self, max_rows: int) -> NDArray[np.float32]:
        """d^n for n = 0..max_rows real rows, d = 2^(-1 / half-life), each rounded once to float32."""
        per_row = 0.0 if self.half_life is None else -1 / self.half_life
        return np.array([math.exp2(per_row * n) for n in range(max_rows + 1)], np.float32)


def update_scores(
    kind: int, score: NDArray[Any], picked: NDArray[np.int32], n_real: int, step: int, decay: NDArray[np.float32]
) -> None:
    """Score every expert of a layer for one request; picked[e] real rows picked expert e."""
    if kind == LRFU:
        fade = decay[n_real]
        for e in range(score.size):
            score[e] = score[e] * fade  # stored, so rounded to float32, before the sum: never a fused multiply-add
            score[e] = score[e] + np.float32(picked[e])
    elif kind == LFU:
        for e in range(score.size):
            score[e] += picked[e]
    elif kind == LRU:
        for e in range(score.size):
            if picked[e] > 0:
                score[e] = step


def take_slot(
    kind: int, n_slots: int, score: NDArray[Any], picked: NDArray[np.int32], slot_of: NDArray[np.int32]
) -> int:
    """Give the lowest empty slot, else that of the lowest-scored expert that is not held (ties: the lowest index), else -1."""
    if kind == STATIC:
        return -1
    n_resident = 0
    victim = -1
    for e in range(score.size):
        if slot_of[e] >= 0:
            n_resident += 1
            if picked[e] == 0 and (victim < 0 or score[e] < score[victim]):
                victim = e
    if n_resident < n_slots:
        return n_resident  # slots fill from 0 and are never given up without a successor
    if victim < 0:
        return -1
    slot = int(slot_of[victim])
    slot_of[victim] = -1
    return slot


def count_picks(picks: NDArray[np.int32], real: NDArray[np.int32], picked: NDArray[np.int32]) -> int:
    """Count into picked[e] the real rows that picked expert e (picks of a row are distinct); returns the number of real rows."""
    n_real = 0
    for row in range(picks.shape[0]):
        if real[row] != 0:
            n_real += 1
            for pick in range(picks.shape[1]):
                picked[picks[row, pick]] += 1
    return n_real


def request(
    kind: int,
    n_slots: int,
    decay: NDArray[np.float32],
    picks: NDArray[np.int32],
    real: NDArray[np.int32],
    step: NDArray[np.int32],
    score: NDArray[Any],
    slot_of: NDArray[np.int32],
    location: NDArray[np.int32],
    fetch_expert: NDArray[np.int32],
    fetch_location: NDArray[np.int32],
    counters: NDArray[np.int64],
) -> int:
    """One request of a layer: update its state, say where every pick lies, list what to fetch; returns the length of that list.

    A location is a slot, n_slots + i for span i of the overflow area, or -1 for a pick of a padded row.
    """
    location[:, :] = -1
    picked = np.zeros(score.size, np.int32)
    n_real = count_picks(picks, real, picked)
    if n_real == 0:
        return 0
    step[0] += 1
    update_scores(kind, score, picked, n_real, step[0], decay)
    found = np.full(score.size, -1, np.int32)
    n_hits = n_fetch = n_overflow = 0
    for row in range(picks.shape[0]):
        if real[row] == 0:
            continue
        for pick in range(picks.shape[1]):
            e = picks[row, pick]
            if found[e] < 0 and slot_of[e] >= 0:
                n_hits += 1
                found[e] = slot_of[e]
            elif found[e] < 0:
                slot = take_slot(kind, n_slots, score, picked, slot_of)
                if slot >= 0:
                    slot_of[e] = slot
                    found[e] = slot
                else:
                    found[e] = n_slots + n_overflow
                    n_overflow += 1
                fetch_expert[n_fetch] = e
                fetch_location[n_fetch] = found[e]
                n_fetch += 1
            location[row, pick] = found[e]
    counters[0] += n_hits
    counters[1] += n_fetch
    counters[2] += n_overflow
    counters[3] += 1
    return n_fetch


def replay(
    kind: int,
    n_slots: int,
    decay: NDArray[np.float32],
    experts: NDArray[np.int32],
    tokens: NDArray[np.int64],
    group: NDArray[np.uint8],
    score: NDArray[Any],
    slot_of: NDArray[np.int32],
    counters: NDArray[np.int64],
) -> None:
    """All requests of one layer in turn: row r of request t has the picks experts[tokens[t, r]], or is padding where that is -1.

    Request t is counted in counters[group[t]].
    """
    rows = tokens.shape[1]
    k = experts.shape[1]
    picks = np.zeros((rows, k), np.int32)
    real = np.zeros(rows, np.int32)
    step = np.zeros(1, np.int32)
    location = np.zeros((rows, k), np.int32)
    fetch_expert = np.zeros(rows * k, np.int32)
    fetch_location = np.zeros(rows * k, np.int32)
    for t in range(tokens.shape[0]):
        for row in range(rows):
            real[row] = tokens[t, row] >= 0
            if real[row] != 0:
                picks[row] = experts[tokens[t, row]]
        at = counters[group[t]]
        request(kind, n_slots, decay, picks, real, step, score, slot_of, location, fetch_expert, fetch_location, at)


@functools.cache
def _compiler() -> Callable[[Any], Any]:
    # Numba is heavy to import and plain use needs none of it; registered functions stay plain for Python callers.
    from numba.extending import register_jitable

    from hotset.host.compile import compiled

    for part in (update_scores, take_slot, count_picks, request):
        register_jitable(part)
    return compiled()


@functools.cache
def compiled_request() -> Callable[..., int]:
    """`request` compiled by Numba."""
    return _compiler()(request)  # type: ignore[no-any-return]


@functools.cache
def compiled_replay() -> Callable[..., None]:
    """`replay` compiled by Numba."""
    return _compiler()(replay)  # type: ignore[no-any-return]


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
        self.score = np.zeros(n_experts, policy.kind.score_type)
        self.slot_of_expert = np.full(n_experts, -1, np.int32)
        self._run = run
        self.reset()

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
        self.score[:] = 0
        self.slot_of_expert[:] = -1
        if self.policy.kind.code == STATIC:
            self.seed(range(self.n_slots))

    def seed(self, experts: Sequence[int]) -> None:
        """Make exactly these experts resident, in slots 0, 1, ...; scores stay as they are."""
        chosen = check_seed(experts, self.score.size, self.n_slots)
        self.slot_of_expert[:] = -1
        self.slot_of_expert[chosen] = np.arange(len(chosen))

    def request(self, picks: NDArray[np.int32], real: NDArray[np.int32] | None = None) -> Decision:
        """Decide on picks [rows, k]; rows where `real` is 0 are padding."""
        real = np.ones(len(picks), np.int32) if real is None else real
        location = np.empty(picks.shape, np.int32)
        expert, target = np.empty((2, picks.size), np.int32)
        counters = np.zeros(4, np.int64)
        n = self._run(
            self.policy.kind.code,
            self.n_slots,
            self.decay,
            picks,
            real,
            self.step,
            self.score,
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
        assert np.all(self.score >= 0), f"a score below 0 or not a number in {self.score}"


def check_seed(experts: Sequence[int], n_experts: int, n_slots: int) -> list[int]:
    """Return the experts to start with, refused unless they are distinct, exist and fit."""
    chosen = [int(e) for e in experts]
    if len(set(chosen)) != len(chosen) or len(chosen) > n_slots or any(not 0 <= e < n_experts for e in chosen):
        raise InputError(f"experts to start with {chosen}: give at most {n_slots} distinct numbers below {n_experts}")
    return chosen
