"""VRAM runs short: the expert cache gives slots back before anything fails, and says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from hotset.engine.memory import MIB
from hotset.errors import PlacementError

if TYPE_CHECKING:
    from hotset.experts.cache import ExpertCache

# What is given back at first; every further time in one shortage it is twice as much.
FIRST_STEP = 64 * MIB

T = TypeVar("T")


def with_room(cache: ExpertCache, work: Callable[[], T]) -> T:
    """What `work` returns. Where the GPU runs out of memory the cache gives slots back and `work` is done again.

    PlacementError once no slot is left.
    """
    step = FIRST_STEP
    while True:
        try:
            return work()
        except torch.cuda.OutOfMemoryError as error:
            problem = str(error)  # the error itself would hold what `work` had made so far
        if not give_back(cache, step, "the GPU ran out of memory"):
            raise PlacementError(
                f"the GPU ran out of memory with no expert left to give back ({problem}); "
                "lower --ctx-size, raise --vram, or use --device cpu"
            )
        step *= 2


def keep_reserve(cache: ExpertCache, excess: Callable[[], int]) -> int:
    """Give slots back until `excess()`, the bytes held beyond the budget's reserve, is none or no slot is left; the bytes given back."""
    freed = 0
    while (over := excess()) > 0 and (now := cache.give_back(over)):
        freed += now
    return freed


def give_back(cache: ExpertCache, n_bytes: int, reason: str) -> int:
    """Give back at least `n_bytes` of slots and warn with `reason`; the bytes given back."""
    before = sum(cache.shape.n_slots)
    freed = cache.give_back(n_bytes)
    if freed:
        warnings.warn(
            f"{reason}: the expert cache gave back {freed // MIB:,} MiB and holds {sum(cache.shape.n_slots):,} instead of {before:,} experts; "
            "--vram or --expert-cache with a smaller size avoids that",
            stacklevel=2,
        )
    return freed
