"""Fit the forecast's three constants to recorded steps, and say how far the forecast is from them; needs no GPU.

    python benchmarks/forecast.py docs/results/2026-11-29-gpu-arms-*.json

Prints every step of one sequence beside its forecast at the measured hit rate; then the constants that fit best, and the largest error on
each shape with constants fitted to the others alone. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotset.plan.forecast import EXPERT_SHARE, FETCH_SHARE, LAYER_S, Rates, Work, miss_s, resident_s, step_s


@dataclass(frozen=True)
class Step:
    """One measured arm. `hit_rate` counts bytes that came ahead of their picks as hits, for nothing waits for them."""

    shape: str
    name: str
    work: Work
    rates: Rates
    hit_rate: float
    seconds: float

    @property
    def error(self) -> float:
        """How much longer than measured the forecast step is."""
        return step_s(self.work, self.rates, self.hit_rate) / self.seconds - 1

    @property
    def terms(self) -> list[float]:
        """Dense bytes' time (whose factor is 1), layers, experts' bytes over the memory rate, and misses at the pinned copy rate."""
        dense = self.work.dense_bytes / self.rates.memory
        experts = self.work.expert_bytes / self.rates.memory
        return [dense, self.work.n_layers, experts, miss_s(self.work, self.rates, self.hit_rate) * FETCH_SHARE]


def steps_of(path: Path) -> list[Step]:
    """The arms of one sequence in a file of docs/results."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    spans = tuple(int(size) for size, n in facts["span_bytes"].items() for _ in range(n))
    work = Work(facts["n_layers"], facts["n_picks"], facts["dense_bytes_read"], spans)
    machine = facts["machine"]
    copies = {int(size): rate for size, rate in machine["pinned_copy"].items()}

    def step(arm: dict[str, Any]) -> Step:
        rates = Rates(machine["gpu_memory"], copies, 0.0, machine["gpu"], arm["bus"])
        name = f"{arm['size']} {arm['policy']} bus {arm['bus']} prefetch {arm.get('prefetch', 0)}"
        ahead = arm.get("ahead_needed_mib", 0.0) * 2**20 / work.expert_bytes
        return Step(facts["shape"], name, work, rates, arm["hit_rate"] + ahead, arm["ms"] / 1e3)

    return [step(arm) for arm in facts["decode"] if arm["rows"] == 1]


def fitted(steps: Sequence[Step]) -> np.ndarray:
    """Layer seconds, 1 / expert share and 1 / fetch share with the least squared relative error."""
    terms = np.array([s.terms for s in steps])
    seconds = np.array([s.seconds for s in steps])
    return np.linalg.lstsq(terms[:, 1:] / seconds[:, None], 1 - terms[:, 0] / seconds, rcond=None)[0]


def worst(steps: Sequence[Step], constants: np.ndarray) -> float:
    """The largest error with these constants."""
    terms = np.array([s.terms for s in steps])
    return float(np.abs((terms[:, 0] + terms[:, 1:] @ constants) / [s.seconds for s in steps] - 1).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    steps = [step for path in parser.parse_args().files for step in steps_of(path)]
    for s in steps:
        forecast = step_s(s.work, s.rates, s.hit_rate)
        print(
            f"| {s.shape} | {s.name} | {s.hit_rate:.3f} | {s.seconds * 1e3:.3f} | {forecast * 1e3:.3f} "
            f"| {resident_s(s.work, s.rates.memory) * 1e3:.3f} | {100 * s.error:+.1f} % |"
        )
    layer, experts, fetch = fitted(steps)
    print(f"in use: layer {LAYER_S * 1e6:.1f} us, expert share {EXPERT_SHARE:.2f}, fetch share {FETCH_SHARE:.2f}")
    print(f"least squares: layer {layer * 1e6:.1f} us, expert share {1 / experts:.2f}, fetch share {1 / fetch:.2f}")
    left_out = {
        shape: worst([s for s in steps if s.shape == shape], fitted([s for s in steps if s.shape != shape]))
        for shape in dict.fromkeys(s.shape for s in steps)
    }
    for shape, error in left_out.items():
        print(f"largest error on {shape}, fitted to the others: {100 * error:.1f} %")
    print(json.dumps({"largest_error": max(abs(s.error) for s in steps), "left_out": left_out}))


if __name__ == "__main__":
    main()
