"""Copies of a sequence's recurrent states at some of its lengths: a state cannot be cut back, so a prefix is reused only from one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

# Kept per sequence: those of the last chunks of a prompt and of its end, where the next turn of a conversation goes on.
MAX_SNAPSHOTS = 4
State = list[tuple[NDArray[Any], ...]]


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
