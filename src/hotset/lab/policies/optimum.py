"""The optimum: keep what is needed soonest. And what needs no loop: a fixed choice, and a pool without limits.

`belady` is the best of all policies that, like those of the expert cache, give a slot to every miss that finds one: the request's own experts
stay, of the others those needed soonest; where a request needs more than there are slots, those of its own that are needed soonest.
`optimum` may leave a miss in the overflow area instead: nothing whatever hits more.

Both are greedy and exact for experts of equal size: an expert kept from one use to the next is an interval, and of intervals that share too
few slots the one that ends last is the one to give up (Carlisle and Lloyd, On the k-coloring of intervals, 1995).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.lab.requests import Requests


def farthest(
    experts: Any, next_use: Any, answer: Any, n_layers: int, n_slots: int, n_members: int, keeps_own: bool, hits: Any
) -> None:
    """Count hits [answers, layers]; plain Python, and compiled by `_compiled`."""
    resident = np.zeros(n_members, np.uint8)
    needed_at = np.zeros(n_members, np.int32)
    held = np.full(n_members, -1, np.int64)
    n_resident = 0
    for r in range(len(experts)):
        n_own = 0
        for j in range(experts.shape[1]):
            e = experts[r, j]
            held[e] = r
            needed_at[e] = next_use[r, j]
            n_own += 1
            if resident[e] != 0:
                hits[answer[r], r % n_layers] += 1
            else:
                resident[e] = 1
                n_resident += 1
        while n_resident > n_slots:
            # While others are left, the request's own stay; -1 sorts before every request number.
            spare_own = keeps_own and n_resident > n_own
            victim = -1
            latest = -1
            for e in range(n_members):
                if resident[e] != 0 and needed_at[e] > latest and not (spare_own and held[e] == r):
                    victim = e
                    latest = needed_at[e]
            resident[victim] = 0
            n_resident -= 1


@functools.cache
def _compiled() -> Callable[..., None]:
    from hotset.host.compile import compiled

    return compiled()(farthest)  # type: ignore[no-any-return]


def optimal_hits(requests: Requests, n_slots: int, *, keeps_own: bool, plain: bool = False) -> NDArray[np.int64]:
    """Hits int64 [answers, layers] of `belady` (keeps_own) or `optimum`."""
    hits = np.zeros(requests.needed.shape, np.int64)
    run = farthest if plain else _compiled()
    run(
        requests.experts, requests.next_use, requests.answer, requests.n_layers, n_slots, requests.n_members, keeps_own, hits
    )  # fmt: skip
    return hits


def fixed_hits(requests: Requests, n_slots: int) -> NDArray[np.int64]:
    """Hits of the most used experts (ties: the lowest number) if they alone get slots, each at its first use, and never leave."""
    chosen = np.zeros(requests.n_members, bool)
    chosen[np.argsort(-requests.uses, kind="stable")[:n_slots]] = True
    found = chosen[requests.experts]
    flat = requests.experts.ravel()
    found.ravel()[np.unique(flat, return_index=True)[1]] = False
    hits = np.zeros(requests.needed.shape, np.int64)
    np.add.at(hits, (requests.answer, np.arange(len(found)) % requests.n_layers), found.sum(1))
    return hits
