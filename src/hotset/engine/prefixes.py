"""Which beginnings of sequences can be taken over: of keys and values any; of states, which cannot be cut back, those they stand at or were copied at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

# Kept per sequence: at the end of a prompt, where the next turn goes on, and a chunk before it, for templates that change the end.
MAX_SNAPSHOTS = 2
State = list[tuple[Any, ...]]


class CopyableKV(Protocol):
    """Keys, values and states of several sequences: HostKV or DeviceKV."""

    def copy(self, source: int, target: int, n: int) -> None:
        """Give a sequence the keys and values of another's first `n` positions; states are left."""

    def state(self, seq: int) -> State:
        """Copy a sequence's states into host memory."""

    def set_state(self, seq: int, state: State) -> None:
        """Take a sequence back to states that were copied."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The states after `n` tokens."""

    n: int
    state: State


class Snapshots:
    """The last few snapshots of one sequence, shortest first."""

    def __init__(self, kept: Iterable[Snapshot] = ()) -> None:
        self._kept = list(kept)

    def add(self, n: int, state: State) -> None:
        """Keep the states after `n` tokens, more than those of any other."""
        self._kept = [*self._kept, Snapshot(n, state)][-MAX_SNAPSHOTS:]

    def longest(self, n: int) -> Snapshot | None:
        """The longest of at most `n` tokens."""
        return next((s for s in reversed(self._kept) if s.n <= n), None)

    def until(self, n: int) -> Snapshots:
        """Those of at most `n` tokens."""
        return Snapshots(s for s in self._kept if s.n <= n)


class Prefixes:
    """How many tokens of each sequence are `stored`, and how many its states have seen, which may be more where steps ran ahead."""

    def __init__(self, kv: CopyableKV, n_seqs: int, *, has_states: bool) -> None:
        self.stored = [0] * n_seqs
        self._kv = kv
        self._has_states = has_states
        self._state_at = [0] * n_seqs
        self._snapshots = [Snapshots() for _ in range(n_seqs)]

    def advance(self, seq: int, n: int) -> None:
        """Note that `n` tokens are stored."""
        self.stored[seq] = self._state_at[seq] = n

    def ran_ahead(self, seq: int, n: int) -> None:
        """Note that the states have seen `n` tokens, of which not all are wanted."""
        self._state_at[seq] = n

    def remember(self, seq: int) -> None:
        """Copy the states as they stand."""
        if self._has_states:
            self._snapshots[seq].add(self.stored[seq], self._kv.state(seq))

    def take(self, source: int, target: int, n: int) -> int:
        """Make the target hold the source's first `n` tokens, or as many of them as can be had; returns how many."""
        kv = self._kv
        n = min(n, self.stored[source])
        if self._has_states and n != self._state_at[source]:
            found = self._snapshots[source].longest(n)
            n = found.n if found else 0  # a state is computed anew from the first token on
            if found:
                kv.set_state(target, found.state)
        elif self._has_states and source != target:
            kv.set_state(target, kv.state(source))
        if source != target:
            kv.copy(source, target, n)
        self._snapshots[target] = self._snapshots[source].until(n)
        self.advance(target, n)
        return n

    def forget(self, seq: int) -> None:
        """Hold nothing."""
        self._snapshots[seq] = Snapshots()
        self.advance(seq, 0)
