"""The search for a policy better than lrfu:16: each idea fitted on one half of the answers (drawn at random) and scored on the other.

python benchmarks/policy_search.py TRACE.npz ... [--slots 0.25] [--page docs/policies.md]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from tables import fill, markdown

from hotset.experts.trace import Trace
from hotset.lab.policies import LabPolicy
from hotset.lab.study import Study

ALWAYS = -1e9
# Buckets of a table over the state of an expert.
AGE, RECENT, LONG, INTO = 12, 13, 11, 3

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Variant:
    """LRFU with changes. A miss gets a slot if its score less `margin` is above the victim's; scores are multiplied by `border` where an

    answer begins; one that comes back within `ghost_tokens` of leaving gets `ghost`; a slower score is added with `slow_weight`.
    """

    half_life: float = 16.0
    margin: float = ALWAYS
    border: float = 1.0
    ghost: float = 0.0
    ghost_tokens: int = 0
    slow_half_life: float = 256.0
    slow_weight: float = 0.0


BASE = Variant()
IDEAS = {
    "another half-life": [replace(BASE, half_life=h) for h in (6.0, 8.0, 11.0, 16.0, 22.0, 32.0)],
    "a miss may stay out: margin": [BASE, *(replace(BASE, margin=m) for m in (-2.0, -1.0, -0.5, 0.0, 0.5))],
    "ghosts: those that come back soon score more": [
        replace(BASE, ghost=g, ghost_tokens=n) for g, n in ((0.0, 0), (0.25, 8), (0.5, 8), (0.5, 32), (1.0, 32))
    ],
    "a slow score added": [
        replace(BASE, slow_half_life=h, slow_weight=w) for h, w in ((256, 0), (256, 0.05), (1024, 0.02), (4096, 0.01))
    ],
    "forget where an answer begins": [replace(BASE, border=f) for f in (1.0, 0.75, 0.5, 0.25, 0.0)],
}


@numba.njit
def lowest(worth: Floats, resident: Flags, held: Ints, t: int) -> int:
    """The resident that is worth least and not needed at t, -1 if there is none."""
    victim = -1
    for e in range(len(worth)):
        if resident[e] and held[e] != t and (victim < 0 or worth[e] < worth[victim]):
            victim = e
    return victim


@numba.njit
def replay(picks: Ints, begins: Flags, n_experts: int, n_slots: int, v: Any) -> int:
    """Hits of one layer; picks [tokens, k], v the numbers of a Variant."""
    fade, slow_fade, slow_weight, margin, border, ghost, ghost_tokens = v
    score, slow = np.zeros(n_experts, np.float32), np.zeros(n_experts, np.float32)
    resident = np.zeros(n_experts, np.bool_)
    held, left = np.full(n_experts, -1), np.full(n_experts, -(1 << 40))
    n_resident = hits = 0
    for t in range(len(picks)):
        score *= fade * (border if begins[t] else np.float32(1))
        slow *= slow_fade
        for e in picks[t]:
            score[e] += np.float32(1)
            slow[e] += np.float32(1)
            held[e] = t
        for e in picks[t]:
            if resident[e]:
                hits += 1
                continue
            if t - left[e] <= ghost_tokens:
                score[e] += ghost
            if n_resident < n_slots:
                n_resident += 1
            else:
                total = score + slow_weight * slow
                victim = lowest(total, resident, held, t)
                if victim < 0 or total[e] - margin <= total[victim]:
                    continue
                resident[victim] = False
                left[victim] = t
            resident[e] = True
    return hits


@numba.njit
def states(picks: Ints, begins: Flags, n_experts: int) -> Any:
    """The cell of every expert after every token, int32 [tokens, experts]: by last use, scores with half-lives of 16 and 128 tokens, and tokens into the answer."""
    found = np.empty((len(picks), n_experts), np.int32)
    recent, long, last = np.zeros(n_experts), np.zeros(n_experts), np.full(n_experts, -1000)
    into = 0
    for t in range(len(picks)):
        into = 1 if begins[t] else into + 1
        recent *= 2 ** (-1 / 16)
        long *= 2 ** (-1 / 128)
        for e in picks[t]:
            recent[e] += 1
            long[e] += 1
            last[e] = t
        for e in range(n_experts):
            age = t - last[e]
            a = age if age < 6 else min(int(np.log2(age / 6) * 2.3) + 6, AGE - 1)
            r = int(recent[e] * 2) if recent[e] < 4 else min(8 + int((recent[e] - 4) / 1.5), RECENT - 1)
            o = min(max(int(np.log2(long[e] + 0.25) * 1.5 + 3), 0), LONG - 1)
            found[t, e] = ((a * RECENT + r) * LONG + o) * INTO + (0 if into < 16 else 1 if into < 64 else 2)
    return found


@numba.njit
def fit_table(picks: Ints, cells: Any, soon: Floats, count: Floats) -> None:
    """Add to every cell the value of the states in it, 2 ** (-tokens until the next use / 12), and count them."""
    value = np.zeros(cells.shape[1])
    for t in range(len(picks) - 1, -1, -1):
        for e in range(len(value)):
            soon[cells[t, e]] += value[e]
            count[cells[t, e]] += 1
        value *= 2 ** (-1 / 12)
        for e in picks[t]:
            value[e] = 1


@numba.njit
def replay_table(picks: Ints, cells: Any, n_slots: int, table: Floats) -> int:
    """Hits of one layer where the expert whose cell is worth least leaves."""
    n_experts = cells.shape[1]
    resident, held = np.zeros(n_experts, np.bool_), np.full(n_experts, -1)
    n_resident = hits = 0
    for t in range(len(picks)):
        for e in picks[t]:
            held[e] = t
        for e in picks[t]:
            if resident[e]:
                hits += 1
                continue
            if n_resident < n_slots:
                n_resident += 1
            else:
                victim = lowest(table[cells[t]], resident, held, t)
                if victim < 0:
                    continue
                resident[victim] = False
            resident[e] = True
    return hits


@dataclass(frozen=True, eq=False)
class Half:
    """Some of a trace's answers, in random order."""

    trace: Trace
    n_slots: int

    @property
    def begins(self) -> Flags:
        begins = np.zeros(self.trace.n_tokens, bool)
        begins[self.trace.offsets[:-1]] = True
        return begins

    @property
    def layers(self) -> list[Ints]:
        return [np.ascontiguousarray(self.trace.experts[:, layer], np.int64) for layer in range(self.trace.n_layers)]

    def hits(self, v: Variant) -> Ints:
        """Hits of every layer."""
        fade, slow_fade = (np.float32(2 ** (-1 / h)) for h in (v.half_life, v.slow_half_life))
        floats = [np.float32(x) for x in (v.slow_weight, v.margin, v.border, v.ghost)]
        numbers = (fade, slow_fade, *floats, v.ghost_tokens)
        return np.array([replay(x, self.begins, self.trace.n_experts, self.n_slots, numbers) for x in self.layers])

    def fitted_table(self) -> Floats:
        soon, count = np.zeros((2, AGE * RECENT * LONG * INTO))
        for x in self.layers:
            fit_table(x, states(x, self.begins, self.trace.n_experts), soon, count)
        return (soon + 1e-3) / (count + 2e-2)

    def table_hits(self, table: Floats) -> int:
        n = self.trace.n_experts
        return sum(replay_table(x, states(x, self.begins, n), self.n_slots, table) for x in self.layers)

    def lab_hits(self, policy: str, *, borders: bool = True) -> int:
        offsets = self.trace.offsets if borders else np.array([0, self.trace.n_tokens])
        trace = Trace(self.trace.experts, offsets, self.trace.n_experts)
        size = self.n_slots / trace.n_experts
        (outcome,) = Study(trace).outcomes([LabPolicy.parse(policy)], ["layer"], [size])
        return int(outcome.hits.sum())


def halves(trace: Trace, n_slots: int, seed: int = 11) -> tuple[Half, Half]:
    order = np.random.default_rng(seed).permutation(len(trace.offsets) - 1)
    parts = np.array_split(order, 2)
    made = []
    for part in parts:
        answers = [trace.experts[trace.offsets[i] : trace.offsets[i + 1]] for i in part]
        offsets = np.concatenate([[0], np.cumsum([len(a) for a in answers])])
        made.append(Half(Trace(np.concatenate(answers), offsets, trace.n_experts), n_slots))
    return made[0], made[1]


def gains(fit: Half, score: Half) -> dict[str, float]:
    """Points of hit rate above lrfu:16 on the half that nothing was fitted on."""
    base = score.hits(BASE).sum()
    assert base == score.lab_hits("lrfu:16")
    found = {}
    for idea, variants in IDEAS.items():
        best = max(variants, key=lambda v: fit.hits(v).sum())
        found[idea] = score.hits(best).sum()
        sys.stderr.write(f"  {idea}: {best}\n")
    by_half_life = IDEAS["another half-life"]
    chosen = np.argmax([fit.hits(v) for v in by_half_life], axis=0)
    table = np.array([score.hits(v) for v in by_half_life])
    found["a half-life for every layer"] = table[chosen, np.arange(len(chosen))].sum()
    found["a table of the chance of a next use soon, by last use, two scores and tokens into the answer"] = (
        score.table_hits(fit.fitted_table())
    )
    found["`product`"] = score.lab_hits("product")
    found["`product` where borders of answers are not known"] = score.lab_hits("product", borders=False)
    found["the optimum without overflow, `belady`"] = score.lab_hits("belady")
    return {idea: 100 * float(hits - base) / score.trace.experts.size for idea, hits in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--slots", type=float, default=0.25)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    columns = {}
    for path in options.traces:
        trace = Trace.read(path)
        name = path.name.removesuffix(".npz")
        sys.stderr.write(f"{name}\n")
        columns[name] = gains(*halves(trace, int(trace.n_experts * options.slots)))
    ideas = next(iter(columns.values()))
    text = markdown(["idea", *columns], [[idea, *(f"{c[idea]:+.2f}" for c in columns.values())] for idea in ideas])
    sys.stdout.write(text)
    if options.page:
        fill(options.page, "search", "\n" + text + "\n")


if __name__ == "__main__":
    main()
