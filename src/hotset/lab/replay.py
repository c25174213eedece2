"""The one loop that all policies share: hits, empty slots, victims, the overflow area."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.lab.memory import CLOCK, N_RESIDENT, N_SLOTS, NOWHERE, PARTS, Memory, new_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.lab.requests import Requests


@dataclass(frozen=True)
class Rules:
    """A policy. `needed` sees a request's experts before anything is decided, and whether it is a token's first and an answer's first; `hit` one that is resident; `victim` takes out a resident that is

    not held to make room for a given expert (NOWHERE if all are held); `admit` sees one that got a slot. `parts` are helpers that compiled
    code needs beside them.
    """

    needed: Callable[[Memory, Any, bool, bool], None]
    hit: Callable[[Memory, int], None]
    victim: Callable[[Memory, int], int]
    admit: Callable[[Memory, int], None]
    parts: tuple[Callable[..., Any], ...] = ()
    score_type: type[Any] = np.int64


def ignore_request(m: Memory, experts: Any, first: bool, begins: bool) -> None:
    """For policies that look at experts one by one."""


def ignore(m: Memory, e: int) -> None:
    """For policies that learn nothing from this."""


def make_loop(rules: Rules) -> Callable[..., None]:
    """The loop of one policy, in plain Python."""
    needed, hit, victim, admit = rules.needed, rules.hit, rules.victim, rules.admit

    def loop(m: Memory, experts: Any, answer: Any, n_layers: int, hits: Any, overflows: Any) -> None:
        for r in range(len(experts)):
            layer = r % n_layers
            m.number[CLOCK] = r
            for e in experts[r]:
                m.held[e] = r
            needed(m, experts[r], layer == 0, layer == 0 and (r == 0 or answer[r] != answer[r - 1]))
            for e in experts[r]:
                if m.resident[e] != 0:
                    hits[answer[r], layer] += 1
                    hit(m, e)
                    continue
                if m.number[N_RESIDENT] < m.number[N_SLOTS]:
                    m.number[N_RESIDENT] += 1
                else:
                    v = victim(m, e)
                    if v == NOWHERE:
                        overflows[answer[r], layer] += 1
                        continue
                    m.resident[v] = 0
                m.resident[e] = 1
                admit(m, e)

    return loop


@functools.cache
def compiled_loop(rules: Rules) -> Callable[..., None]:
    """The loop of one policy, compiled by Numba."""
    # Numba is heavy to import and plain use needs none of it; registered functions stay plain for Python callers.
    from numba.extending import register_jitable

    from hotset.host.compile import compiled

    for part in (*PARTS, *rules.parts, rules.needed, rules.hit, rules.victim, rules.admit):
        register_jitable(part)
    return compiled()(make_loop(rules))  # type: ignore[no-any-return]


def replay(
    rules: Rules,
    requests: Requests,
    n_slots: int,
    decay: NDArray[np.float32] | None = None,
    ranking: NDArray[np.int64] | None = None,
    *,
    plain: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hits and overflows int64 [answers, layers] from a cold start; `ranking` are scores to begin with; `plain` runs the loop in Python."""
    memory = new_memory(n_slots, requests.cost, rules.score_type, decay)
    if ranking is not None:
        memory.score[:] = ranking
    hits, overflows = np.zeros((2, *requests.needed.shape), np.int64)
    loop = make_loop(rules) if plain else compiled_loop(rules)
    loop(memory, requests.experts, requests.answer, requests.n_layers, hits, overflows)
    return hits, overflows
