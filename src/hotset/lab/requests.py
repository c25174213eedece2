"""A trace as the requests of a pool: what each needs, one after the other, each one atomic event."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.trace import Trace


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests of `k` experts each, numbered within the pool: `experts` int32 [requests, k], in the order of picks.

    `layer` is each request's layer within the pool, `answer` the answer that it belongs to; `n_layers` layers of `n_experts` experts share
    the pool, request after request, token after token. `cost` is the bytes of each of the pool's experts relative to their mean.
    """

    experts: NDArray[np.int32]
    answer: NDArray[np.int32]
    n_layers: int
    n_experts: int
    cost: NDArray[np.float64]

    @property
    def k(self) -> int:
        return int(self.experts.shape[1])

    @property
    def n_members(self) -> int:
        """Experts that may be in the pool."""
        return self.n_layers * self.n_experts

    @property
    def demand(self) -> int:
        """Experts that one token needs: fewer slots than this are below the cliff."""
        return self.k * self.n_layers

    @property
    def n_answers(self) -> int:
        return int(self.answer[-1]) + 1 if len(self.answer) else 0

    @cached_property
    def next_use(self) -> NDArray[np.int32]:
        """Int32 [requests, k]: the request that needs this expert next; the number of requests where none does."""
        n = len(self.experts)
        flat = self.experts.ravel()
        order = np.argsort(flat, kind="stable")
        following = np.full(flat.size, n, np.int32)
        same = flat[order[:-1]] == flat[order[1:]]
        following[order[:-1][same]] = order[1:][same] // self.k
        return following.reshape(self.experts.shape)

    @cached_property
    def uses(self) -> NDArray[np.int64]:
        """How often each expert of the pool is needed."""
        return np.bincount(self.experts.ravel(), minlength=self.n_members)

    @cached_property
    def needed(self) -> NDArray[np.int64]:
        """Experts needed, by answer and layer: int64 [answers, layers]."""
        per_answer = np.bincount(self.answer, minlength=self.n_answers) * self.k // self.n_layers
        return np.repeat(per_answer[:, None], self.n_layers, axis=1)


def answer_of_token(trace: Trace) -> NDArray[np.int32]:
    """The answer of every token."""
    ends = trace.offsets[1:]
    return np.searchsorted(ends, np.arange(trace.n_tokens), side="right").astype(np.int32)


def layer_requests(trace: Trace, layer: int) -> Requests:
    """The requests of one layer, whose experts have a pool of their own."""
    experts = np.ascontiguousarray(trace.experts[:, layer], np.int32)
    return Requests(experts, answer_of_token(trace), 1, trace.n_experts, np.ones(trace.n_experts))


def global_requests(trace: Trace) -> Requests:
    """The requests of all layers, whose experts share one pool; a slot holds any of them."""
    first = np.arange(trace.n_layers, dtype=np.int32) * trace.n_experts
    experts = trace.experts.astype(np.int32) + first[:, None]
    span = np.array(trace.span_bytes or [1] * trace.n_layers, np.float64)
    return Requests(
        np.ascontiguousarray(experts.reshape(-1, trace.k)),
        np.repeat(answer_of_token(trace), trace.n_layers),
        trace.n_layers,
        trace.n_experts,
        np.repeat(span / span.mean(), trace.n_experts),
    )
