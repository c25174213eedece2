"""What a trace looks like without any policy, and how many slots its layers need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hotset.lab.requests import layer_requests

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.trace import Trace

NEEDED_RATES = (0.5, 0.75, 0.9)


def expert_uses(trace: Trace) -> NDArray[np.int64]:
    """Tokens that pick each expert: int64 [layers, experts]."""
    return np.stack(
        [np.bincount(trace.experts[:, layer].ravel(), minlength=trace.n_experts) for layer in range(trace.n_layers)]
    )


def reuse_distances(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Edges (1, 2, 4, ...) in tokens, and how many picks repeat one that lies so far back in their layer."""
    found = []
    for layer in range(trace.n_layers):
        requests = layer_requests(trace, layer)
        distance = requests.next_use - np.arange(len(requests.experts))[:, None]
        found.append(distance[requests.next_use < len(requests.experts)])
    distances = np.concatenate(found)
    edges = 2 ** np.arange(max(int(distances.max(initial=1)).bit_length(), 1) + 1)
    return edges, np.histogram(distances, edges)[0]


def slots_for(curves: NDArray[np.int64], needed: NDArray[np.int64], rate: float) -> NDArray[np.int64]:
    """The fewest slots of every layer that reach a hit rate, all experts where none do; `curves` [layers, experts + 1] are hits by slots."""
    reached = curves >= rate * needed[:, None]
    reached[:, -1] = True
    return np.asarray(reached.argmax(1), np.int64)
