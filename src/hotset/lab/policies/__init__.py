"""The table of policies that the laboratory knows; a new one is a set of rules and a line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import InputError
from hotset.experts.policy import Policy
from hotset.lab.policies import product, queues, scored, segments
from hotset.lab.policies.optimum import fixed_hits, optimal_hits
from hotset.lab.replay import Rules, replay

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.lab.requests import Requests


@dataclass(frozen=True)
class Kind:
    """A row of POLICIES; one without `rules` needs no loop of its own. `settings` are what "all" takes, for policies that have one."""

    summary: str
    rules: Rules | None = None
    settings: tuple[str, ...] = ("",)


POLICIES: dict[str, Kind] = {
    "lru": Kind("the least recently used leaves", scored.LRU),
    "lfu": Kind("the least often used leaves", scored.LFU),
    "lrfu": Kind("uses count, fading with a half-life in tokens", scored.LRFU, (":4", ":16", ":64", ":256")),
    "fifo": Kind("the one that came first leaves", scored.FIFO),
    "clock": Kind("FIFO, but one used since it was last looked at goes round again", queues.CLOCK_RULES),
    "sieve": Kind("a hand passes over used ones and takes the first that was not", queues.SIEVE),
    "s3-fifo": Kind("newcomers prove themselves in a small queue", queues.S3_FIFO),
    "slru": Kind("a second use protects; four fifths are protected", segments.SLRU),
    "lru-2": Kind("the one whose last use but one is longest ago leaves", scored.LRU_2),
    "arc": Kind("recent and frequent ones in lists whose sizes adapt", segments.ARC),
    "w-tinylfu": Kind("a small window; its oldest stays if it was used more often than the other", segments.W_TINYLFU),
    "gdsf": Kind("uses times bytes, above the value at which the last one left", scored.GDSF),
    "product": Kind("recent use times longer use times last use; forgets where an answer begins", product.PRODUCT),
    "static": Kind("ranked once, by use over the whole trace: the lowest leaves", scored.FIXED),
    "belady": Kind("the one needed last leaves: the best of all that give every miss a slot"),
    "unbounded": Kind("a slot for every expert: only first uses miss", scored.LRU),
    "placement": Kind("the most used of the whole trace get the slots, and nothing moves"),
    "optimum": Kind("like belady, but a miss may stay out: nothing hits more"),
}
# These leave misses in the overflow area though a slot could be had, so that belady is no bound for them: shown on demand.
NOT_IN_ALL = ("placement", "optimum")


@dataclass(frozen=True)
class LabPolicy:
    """A policy with its setting; `str` gives back what `parse` reads."""

    name: str
    half_life: float | None = None

    @staticmethod
    def parse(text: str) -> LabPolicy:
        """Read `lru`, `lrfu:16`, `belady`, ..."""
        word = text.strip().lower()
        if word.partition(":")[0] == "lrfu":
            return LabPolicy("lrfu", Policy.parse(word).half_life)
        if word not in POLICIES:
            raise InputError(f"policy {text!r} is unknown; there are all, {', '.join(POLICIES)}")
        return LabPolicy(word)

    def __str__(self) -> str:
        return self.name if self.half_life is None else str(Policy(self.name, self.half_life))

    @property
    def decay(self) -> NDArray[np.float32] | None:
        return None if self.half_life is None else Policy(self.name, self.half_life).decay_table(1)[:, 0]

    def hits(self, requests: Requests, n_slots: int) -> NDArray[np.int64]:
        """Hits int64 [answers, layers] with so many slots, from a cold start."""
        if self.name in ("belady", "optimum"):
            return optimal_hits(requests, n_slots, keeps_own=self.name == "belady")
        if self.name == "placement":
            return fixed_hits(requests, n_slots)
        rules = POLICIES[self.name].rules
        assert rules is not None
        return replay(rules, requests, n_slots, self.decay, requests.uses if self.name == "static" else None)[0]


def parse_policies(text: str) -> list[LabPolicy]:
    """Read a list as in "lru,lrfu:16", or "all"."""
    found: dict[LabPolicy, None] = {}
    for word in text.split(","):
        if word.strip().lower() == "all":
            names = [n + s for n, kind in POLICIES.items() if n not in NOT_IN_ALL for s in kind.settings]
            found |= dict.fromkeys(LabPolicy.parse(name) for name in names)
        else:
            found[LabPolicy.parse(word)] = None
    return list(found)
