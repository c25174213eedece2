"""The arms of a measurement: expert caches of several sizes and policies on one loaded model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from hotset.bench.units import size_text
from hotset.engine.memory import COUNTED_SIZE, MIB
from hotset.errors import PlacementError
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheSize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.experts.slots import CacheShape

# What an arm takes beside slots and KV cache: its tables and captured steps.
ARM_BYTES = 64 * MIB


@dataclass(frozen=True)
class Arm:
    """One size and policy (and number of CPU threads, None: as loaded)."""

    size: str
    policy: Policy
    threads: int | None = None

    def __str__(self) -> str:
        return self.size if CacheSize.parse(self.size).kind == "off" else f"{self.size} {self.policy}"


# Static placement of everything starts full: no run of it misses.
RESIDENT = Arm("100%", Policy("static", None))


@dataclass(frozen=True)
class Placed:
    """An arm with its slots; `n_bytes` is what it takes of GPU memory that others do not share."""

    arm: Arm
    n_slots: tuple[int, ...]
    n_bytes: int

    @property
    def sure_bytes(self) -> int:
        """What of it is known, and not allowed for."""
        return max(0, self.n_bytes - ARM_BYTES)


def sweep(sizes: Sequence[str], policies: Sequence[str], threads: Sequence[int | None]) -> list[Arm]:
    """Every combination once; a cache that is off has no policy, so it is one arm."""
    arms: dict[object, Arm] = {}
    for size, policy, n in product(sizes, policies, threads):
        arm = Arm(size, Policy.parse(policy), n)
        is_off = CacheSize.parse(size).kind == "off"
        arms.setdefault(("off", n) if is_off else (size, arm.policy, n), arm)
    return list(arms.values())


def placed(arm: Arm, shape: CacheShape, room: int | None, kv_bytes: int) -> Placed:
    """An arm's slots within `room` bytes of GPU memory (None: on the CPU, where slots take none); PlacementError where they do not fit."""
    size = CacheSize.parse(arm.size)
    if room is None:
        counted = COUNTED_SIZE if size.kind == "auto" else size
        return Placed(arm, counted.n_slots(shape.span_bytes, shape.n_experts), 0)
    own = kv_bytes + ARM_BYTES
    n_slots = size.n_slots(shape.span_bytes, shape.n_experts, max(0, room - own))
    n_bytes = own + sum(n * span for n, span in zip(n_slots, shape.span_bytes, strict=True))
    if n_bytes > room:
        raise PlacementError(
            f"the arm {arm} takes {size_text(n_bytes)} of GPU memory and {size_text(room)} are left; "
            "give a smaller size, raise --vram or lower -p and -n"
        )
    return Placed(arm, n_slots, n_bytes)


def turns(arms: Sequence[Placed], room: int | None) -> list[list[Placed]]:
    """Arms that are loaded together: all of them where they fit, else one by one, those with the most slots first."""
    if room is None or sum(a.n_bytes for a in arms) <= room:
        return [list(arms)]
    return [[a] for a in sorted(arms, key=lambda a: -sum(a.n_slots))]
