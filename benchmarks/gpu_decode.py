"""Decode speed on a GPU at real locality: recorded (or made) picks replayed on random weights, several cache sizes in one process.

Prints, per arm, the step time beside what the bus allows: resident step + missed bytes / measured pinned copy rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

import hotset
from hotset.engine.device import DeviceModel, DeviceRunner
from hotset.engine.seat import Seat
from hotset.experts.cache import ExpertCache
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape, CacheSize
from hotset.model.device_ops import Routing

PARAMS = hotset.SamplingParams(temperature=0)


def load_trace(source: str, n_layers: int, n_experts: int, k: int) -> np.ndarray:
    """Picks int16 [tokens, layers, k]: a recorded trace, "random", or "repeat" (the same for every token)."""
    rng = np.random.default_rng(0)
    if source in ("random", "repeat"):
        tokens = 4096 if source == "random" else 1
        return np.argsort(rng.random((tokens, n_layers, n_experts)), axis=-1)[..., :k].astype(np.int16)
    picks = np.load(source)["experts"]
    assert picks.shape[1:] == (n_layers, k), f"trace {picks.shape} for {n_layers} layers, {k} picks"
    return picks.astype(np.int16)


def pinned_copy_rate(bank: torch.Tensor, size: int) -> float:
    """Bytes per second of copies of `size` bytes from the page-locked bank."""
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    n = min(64, bank.numel() // size)
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for i in range(n):
            target.copy_(bank[i * size : (i + 1) * size], non_blocking=True)
        torch.cuda.synchronize()
        rate = n * size / (time.perf_counter() - began)
    return rate


class Arm:
    """One cache size: its own cache on the shared bank and weights."""

    def __init__(
        self, engine: hotset.Engine, size: str, policy: str, trace: np.ndarray, m: int, arguments: argparse.Namespace
    ) -> None:
        model = engine.runner.model
        config = model.config
        shape = model.cache.shape
        slots = CacheSize.parse(size).n_slots(shape.span_bytes, shape.n_experts, 0)
        shape = CacheShape(shape.span_bytes, shape.n_experts, slots, shape.k, shape.max_rows)
        cache = ExpertCache(shape, Policy.parse(policy), model.bank.base, "cuda")
        cache.bus_factor = arguments.bus_factor
        model = DeviceModel(config, model.weights, model.bank, cache, model.device)
        self.runner = DeviceRunner(model, arguments.ctx, use_graphs=not arguments.no_graph)
        self.seat: Seat = self.runner.seat(m)
        offsets = torch.arange(m, dtype=torch.int32, device="cuda") * (len(trace) // m)
        self.seat.ops.routing = Routing(torch.from_numpy(trace).cuda(), offsets)
        for row in range(m):
            self.seat.place(row, [1], PARAMS, 0, ())
        self.cache = cache

    def steps(self, n: int) -> tuple[float, float]:
        """Seconds per step, and seconds per step that the host spent starting them."""
        torch.cuda.synchronize()
        host = 0.0
        began = time.perf_counter()
        for _ in range(n):
            at = time.perf_counter()
            self.seat.step(greedy=True)
            host += time.perf_counter() - at
            if self.seat.pending > 1:
                self.seat.read()
        self.seat.discard()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / n, host / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--routing", required=True)
    parser.add_argument("--sizes", default="100%,50%,37.5%,25%")
    parser.add_argument("--policy", default="lrfu:16")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--warm", type=int, default=300)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--bus-factor", type=int, default=1)
    parser.add_argument("--no-graph", action="store_true")
    arguments = parser.parse_args()
    began = time.perf_counter()
    engine = hotset.load(arguments.model, device="cuda", expert_cache="off", n_ctx=64)
    print(f"loaded in {time.perf_counter() - began:.1f} s", flush=True)
    config, bank = engine.config, engine.runner.model.bank
    trace = load_trace(arguments.routing, config.n_layers, config.n_experts, config.n_picks)
    bus = pinned_copy_rate(torch.from_numpy(bank.data), bank.span_bytes[0])
    print(f"pinned copy at the span's size {bus / 1e9:.1f} GB/s", flush=True)
    resident, rows = None, []
    for size in arguments.sizes.split(","):
        arm = Arm(engine, size, arguments.policy, trace, arguments.rows, arguments)
        began = time.perf_counter()
        arm.steps(arguments.warm)
        warm_s = time.perf_counter() - began
        arm.cache.reset_stats()
        times = [arm.steps(arguments.steps // arguments.repeats) for _ in range(arguments.repeats)]
        step = statistics.median(t for t, _ in times)
        stats = arm.cache.stats()
        n = arguments.steps // arguments.repeats * arguments.repeats
        missed = stats.bytes_fetched * arguments.bus_factor / n
        resident = resident or step
        ideal = resident + missed / bus
        row = {
            "size": size, "policy": arguments.policy, "rows": arguments.rows, "ms": step * 1e3, "tokens_per_s": arguments.rows / step,
            "spread_ms": (max(t for t, _ in times) - min(t for t, _ in times)) * 1e3, "host_ms": statistics.median(h for _, h in times) * 1e3,
            "hit_rate": stats.hit_rate, "mb_per_step": missed / 1e6, "ideal_ms": ideal * 1e3, "ratio": step / ideal,
            "fetch_ms": (arm.cache.fetch_ms() or 0) / n, "bus_gb_per_s": bus / 1e9, "vram_gib": torch.cuda.max_memory_reserved() / 2**30,
        }  # fmt: skip
        rows.append(row)
        print(
            f"{size:>6}: {row['ms']:.3f} ms/step ({row['tokens_per_s']:.1f} tok/s, spread {row['spread_ms']:.3f} ms, host {row['host_ms']:.3f} ms) "
            f"hit {stats.hit_rate or 0:.3f} {row['mb_per_step']:.1f} MB/step, ideal {row['ideal_ms']:.3f} ms, ratio {row['ratio']:.3f}, "
            f"fetch {row['fetch_ms']:.3f} ms (warm-up {warm_s:.1f} s)",
            flush=True,
        )
        del arm
        torch.cuda.empty_cache()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
