"""How long the lookup kernel takes per layer, for every policy: run on a GPU.

A CUDA graph has the lookups of many steps through all layers of a model, with picks that repeat about as often as recorded ones do; the
first step of each replay begins answers. A kernel that adds 1 to a number is the floor. The last line of stdout is JSON.

    python benchmarks/lookup.py
    python benchmarks/lookup.py --slots 0.5 --layers 24 --steps 40
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import numpy as np
import torch
from kernels import microseconds

from hotset.experts.cache import ExpertCache
from hotset.experts.policy import POLICIES, Policy
from hotset.experts.slots import CacheShape
from hotset.kernels.rows import BEGINS, REAL

SPAN_BYTES = 256
# (experts, picks) as Qwen3-30B-A3B and gpt-oss-20b have them.
SHAPES = ((128, 8), (32, 4))
ROWS = (1, 8)
# Chance that a pick of the token before is picked again.
AGAIN = 0.4


def some_picks(rng: np.random.Generator, steps: int, rows: int, n_experts: int, k: int) -> np.ndarray:
    """Picks int32 [steps, rows, k] of one layer."""
    picks = np.empty((steps, rows, k), np.int32)
    chance = np.zeros((rows, n_experts))
    for step in range(steps):
        picks[step] = np.argsort(-(chance + rng.random((rows, n_experts))), axis=1)[:, :k]
        chance[:] = 0
        np.put_along_axis(chance, picks[step], rng.random((rows, k)) < AGAIN, axis=1)
    return picks


def measure(policy: str, rows: int, n_experts: int, k: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Microseconds of one lookup of `rows` rows."""
    layers, steps = arguments.layers, arguments.steps
    n_slots = int(arguments.slots * n_experts)
    shape = CacheShape((SPAN_BYTES,) * layers, (n_experts,) * layers, (n_slots,) * layers, k, max(ROWS))
    bank = torch.zeros(n_experts * SPAN_BYTES, dtype=torch.uint8, pin_memory=True)
    cache = ExpertCache(shape, Policy.parse(policy), (bank.data_ptr(),) * layers, "cuda", ring_steps=arguments.ring)
    rng = np.random.default_rng(0)
    picks = np.stack([some_picks(rng, steps, rows, n_experts, k) for _ in range(layers)], 1)
    on_device = torch.from_numpy(picks).cuda()  # [steps, layers, rows, k]
    marks = torch.full((steps, rows), REAL, dtype=torch.int32, device="cuda")
    marks[0] = BEGINS
    launches = [
        partial(cache.lookup, layer, on_device[step, layer], marks[step])
        for step in range(steps)
        for layer in range(layers)
    ]
    us = microseconds(launches)
    stats = cache.stats()
    return {
        "policy": policy, "rows": rows, "experts": n_experts, "picks": k, "us": us, "hit_rate": stats.hit_rate,
        "misses_per_lookup": sum(stats.misses) / sum(stats.requests),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--steps", type=int, default=20, help="steps in one graph")
    parser.add_argument("--slots", type=float, default=0.25, help="part of a layer's experts that have a slot")
    parser.add_argument("--ring", type=int, default=0, help="steps whose picks are recorded")
    arguments = parser.parse_args()
    number = torch.zeros(1, dtype=torch.int32, device="cuda")
    floor = microseconds([partial(number.add_, 1)] * (arguments.layers * arguments.steps))
    print(
        f"{torch.cuda.get_device_name()}: a kernel that adds 1 to a number takes {floor:.2f} us in a graph", flush=True
    )
    found = []
    for n_experts, k in SHAPES:
        for rows in ROWS:
            for policy in POLICIES:
                row = measure(policy, rows, n_experts, k, arguments)
                found.append(row)
                print(
                    f"{rows} rows, {k:2} of {n_experts:3}  {policy:8} {row['us']:6.2f} us, {row['misses_per_lookup']:.1f} misses",
                    flush=True,
                )
    print(json.dumps({"device": torch.cuda.get_device_name(), "floor_us": floor, "lookups": found}))


if __name__ == "__main__":
    main()
