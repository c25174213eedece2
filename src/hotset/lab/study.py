"""A trace replayed by many policies, pools and sizes; what is needed twice is replayed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.lab.intervals import interval
from hotset.lab.policies import LabPolicy
from hotset.lab.pools import deal_slots
from hotset.lab.requests import global_requests, layer_requests

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from hotset.experts.trace import Trace
    from hotset.lab.requests import Requests

BELADY = LabPolicy("belady")
UNBOUNDED = LabPolicy("unbounded")
# Whose curves decide where a slot gains most: the expert cache's default.
DEALER = LabPolicy("lrfu", 16.0)
# One pool for all layers has no layer of its own.
EVERY_LAYER = -1
Task = tuple[LabPolicy, int, int]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one policy hit in pools of one size: `hits` of `needed` distinct experts, int64 [answers, layers]; `layer_slots` where each layer has its own.

    `best` are Belady's hits in the same pools; `demand` is the slots that one token needs.
    """

    policy: LabPolicy
    pool: str
    slots: float
    n_slots: int
    layer_slots: tuple[int, ...] | None
    demand: int
    hits: NDArray[np.int64]
    needed: NDArray[np.int64]
    best: NDArray[np.int64]
    span_bytes: tuple[int, ...] | None
    n_tokens: int

    @property
    def hit_rate(self) -> float | None:
        return _share(self.hits.sum(), self.needed.sum())

    @property
    def layer_hit_rates(self) -> list[float | None]:
        return [_share(h, n) for h, n in zip(self.hits.sum(0), self.needed.sum(0), strict=True)]

    @property
    def byte_hit_rate(self) -> float | None:
        """Bytes found of bytes needed; as if spans were of one size where their sizes are not known."""
        span = np.array(self.span_bytes or [1] * self.hits.shape[1])
        return _share((self.hits @ span).sum(), (self.needed @ span).sum())

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes fetched per token; None where the spans' sizes are not known."""
        if self.span_bytes is None or not self.n_tokens:
            return None
        return float(((self.needed - self.hits) @ np.array(self.span_bytes)).sum() / self.n_tokens)

    @property
    def regret(self) -> float | None:
        """How far the hit rate is below Belady's."""
        return _share(self.best.sum() - self.hits.sum(), self.needed.sum())

    @property
    def below_demand(self) -> bool:
        """Whether the slots are fewer than one token needs."""
        return self.n_slots < self.demand

    @cached_property
    def hit_rate_95(self) -> tuple[float, float] | None:
        """A 95 % confidence interval of the hit rate, over answers."""
        return interval(self.hits.sum(1), self.needed.sum(1))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return {
            "policy": str(self.policy),
            "pool": self.pool,
            "slots": self.slots,
            "n_slots": self.n_slots,
            "layer_slots": None if self.layer_slots is None else list(self.layer_slots),
            "hit_rate": self.hit_rate,
            "hit_rate_95": None if self.hit_rate_95 is None else list(self.hit_rate_95),
            "byte_hit_rate": self.byte_hit_rate,
            "bytes_per_token": self.bytes_per_token,
            "regret": self.regret,
            "below_demand": self.below_demand,
            "hits": int(self.hits.sum()),
            "misses": int((self.needed - self.hits).sum()),
        }


def _share(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None


class Study:
    """Replays of one trace, from a cold start, on so many threads."""

    def __init__(self, trace: Trace, threads: int = 1) -> None:
        self.trace = trace
        self._threads = threads
        self._done: dict[Task, NDArray[np.int64]] = {}

    @cached_property
    def _layers(self) -> list[Requests]:
        return [layer_requests(self.trace, layer) for layer in range(self.trace.n_layers)]

    @cached_property
    def _all(self) -> Requests:
        return global_requests(self.trace)

    def outcomes(
        self, policies: Sequence[LabPolicy], pools: Sequence[str], fractions: Sequence[Fraction]
    ) -> Iterator[Outcome]:
        """Every policy in every pool at every size (a fraction of each layer's experts), pool by pool, size by size; `unbounded` once."""
        for pool in pools:
            sizes = [int(self.trace.n_experts * f) for f in fractions]
            dealt = [self._dealt(pool, n) for n in sizes]
            asked = dict.fromkeys([BELADY, *(p for p in policies if p != UNBOUNDED)])
            self._run(task for policy in asked for slots in dealt for task in self._tasks(policy, slots))
            for fraction, n, slots in zip(fractions, sizes, dealt, strict=True):
                best = self._hits(BELADY, slots)
                for policy in policies:
                    if policy != UNBOUNDED:
                        yield self._outcome(policy, pool, float(fraction), n, slots, best)
            if UNBOUNDED in policies:
                n = self.trace.n_experts
                slots = self._dealt(pool, n)
                self._run(task for policy in (UNBOUNDED, BELADY) for task in self._tasks(policy, slots))
                yield self._outcome(UNBOUNDED, pool, 1.0, n, slots, self._hits(BELADY, slots))

    def _outcome(
        self, policy: LabPolicy, pool: str, fraction: float, n: int, slots: Sequence[int], best: NDArray[np.int64]
    ) -> Outcome:
        trace = self.trace
        return Outcome(
            policy=policy,
            pool=pool,
            slots=fraction,
            n_slots=n * trace.n_layers,
            layer_slots=None if pool == "global" else tuple(slots),
            demand=trace.k * trace.n_layers,
            hits=self._hits(policy, slots),
            needed=self.needed,
            best=best,
            span_bytes=trace.span_bytes,
            n_tokens=trace.n_tokens,
        )

    @property
    def needed(self) -> NDArray[np.int64]:
        """Distinct experts needed int64 [answers, layers]."""
        return self._all.needed

    def curves(self, policy: LabPolicy = DEALER) -> NDArray[np.int64]:
        """Hits of every layer by its slots: int64 [layers, experts + 1]."""
        n_layers, n_max = self.trace.n_layers, self.trace.n_experts
        self._run((policy, layer, n) for layer in range(n_layers) for n in range(1, n_max + 1))
        hits = np.zeros((n_layers, n_max + 1), np.int64)
        for layer in range(n_layers):
            hits[layer, 1:] = [self._done[policy, layer, n].sum() for n in range(1, n_max + 1)]
        return hits

    def _dealt(self, pool: str, n: int) -> tuple[int, ...]:
        """Slots per layer; of one pool for all layers its slots."""
        n_layers = self.trace.n_layers
        if pool == "global":
            return (n * n_layers,)
        if pool == "layer":
            return (n,) * n_layers
        return deal_slots(self.curves(), self.trace.span_bytes or (1,) * n_layers, n)

    def _tasks(self, policy: LabPolicy, slots: Sequence[int]) -> list[Task]:
        if len(slots) == 1 and self.trace.n_layers > 1:
            return [(policy, EVERY_LAYER, slots[0])]
        return [(policy, layer, n) for layer, n in enumerate(slots)]

    def _hits(self, policy: LabPolicy, slots: Sequence[int]) -> NDArray[np.int64]:
        return np.concatenate([self._done[task] for task in self._tasks(policy, slots)], axis=1)

    def _run(self, tasks: Iterable[Task]) -> None:
        wanted = [task for task in dict.fromkeys(tasks) if task not in self._done]
        # The first of each policy alone: it compiles.
        first = list({task[0]: task for task in wanted}.values())
        for task in first:
            self._done[task] = self._replay(task)
        rest = [task for task in wanted if task not in self._done]
        with ThreadPoolExecutor(self._threads) as pool:
            self._done.update(zip(rest, pool.map(self._replay, rest), strict=True))

    def _replay(self, task: Task) -> NDArray[np.int64]:
        policy, layer, n_slots = task
        return policy.hits(self._all if layer == EVERY_LAYER else self._layers[layer], n_slots)
