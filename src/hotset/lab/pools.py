"""How slots are shared: the same for every layer, one pool for all, or per layer where one more slot gains most."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

POOLS = ("layer", "global", "marginal")


def parse_pools(text: str) -> list[str]:
    """Read a list as in "layer,global", or "all"."""
    words = [word.strip().lower() for word in text.split(",")]
    if "all" in words:
        return list(POOLS)
    for word in words:
        if word not in POOLS:
            raise InputError(f"pool {word!r} is unknown; there are {', '.join(POOLS)} and all")
    return list(dict.fromkeys(words))


def deal_slots(curves: NDArray[np.int64], span_bytes: Sequence[int], equal: int) -> tuple[int, ...]:
    """Slots per layer in the bytes of `equal` slots in each, where they gain most; `curves` [layers, experts + 1] are hits by slots."""
    return deal_bytes(curves, span_bytes, (equal,) * len(curves))


def deal_bytes(curves: NDArray[np.int64], span_bytes: Sequence[int], before: tuple[int, ...]) -> tuple[int, ...]:
    """The same in the bytes of the slots per layer `before`.

    Along a layer's concave hull bytes saved per byte of slots fall, so hull edges are taken in that order; what one edge too many leaves
    goes to parts of edges. Never worse on these curves than `before`: where the parts would be, that it is.
    """
    n_layers, n_max = curves.shape[0], curves.shape[1] - 1
    budget = sum(n * span for n, span in zip(before, span_bytes, strict=True))
    edges = sorted(
        ((gain, layer, length) for layer in range(n_layers) for gain, length in _hull_edges(curves[layer])), reverse=True
    )  # fmt: skip
    slots = [0] * n_layers
    for _, layer, length in edges:
        n = min(length, budget // span_bytes[layer], n_max - slots[layer])
        slots[layer] += n
        budget -= n * span_bytes[layer]
    span = np.array(span_bytes)
    layers = np.arange(n_layers)
    dealt = curves[layers, slots] @ span
    return tuple(slots) if dealt >= curves[layers, np.array(before)] @ span else before


def _hull_edges(curve: NDArray[np.int64]) -> list[tuple[float, int]]:
    """Gain per slot and length of the edges of a curve's upper concave hull, the steepest first."""
    corners: list[int] = []
    for n in range(len(curve)):
        while len(corners) > 1 and (curve[n] - curve[corners[-2]]) * (corners[-1] - corners[-2]) >= (
            curve[corners[-1]] - curve[corners[-2]]
        ) * (n - corners[-2]):
            corners.pop()
        corners.append(n)
    return [(float(curve[b] - curve[a]) / (b - a), b - a) for a, b in pairwise(corners)]
