"""How fast the GPU reads prompts: random token ids through the model's own router, with none, half and all experts resident.

The bus allows tokens / (experts touched x span bytes / pinned copy rate); the distinct experts per layer are printed.
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
from hotset.experts.cache import ExpertCache
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--resident", default="0,0.5,1")
    parser.add_argument("--tokens", default="32,128,512,2048,4096")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--profile", type=int, default=0, help="profile a prompt of so many tokens at the last residency"
    )
    arguments = parser.parse_args()
    engine = hotset.load(arguments.model, device="cuda", expert_cache="off", n_ctx=4200)
    model, config = engine.runner.model, engine.config
    lengths = [int(n) for n in arguments.tokens.split(",")]
    rng = np.random.default_rng(0)
    rows = []
    for share in map(float, arguments.resident.split(",")):
        shape = model.cache.shape
        n_slots = (int(share * config.n_experts),) * config.n_layers
        shape = CacheShape(shape.span_bytes, shape.n_experts, n_slots, shape.k, shape.max_rows)
        cache = ExpertCache(shape, Policy.parse("lrfu:16"), model.bank.base, "cuda")
        for layer in range(config.n_layers):
            cache.seed(layer, range(n_slots[layer]))
        runner = DeviceRunner(
            DeviceModel(config, model.weights, model.bank, cache, model.device), 4200, use_graphs=False, chunk_rows=4096
        )
        for n in lengths:
            tokens = rng.integers(0, config.n_vocab, n).tolist()
            kv = runner.kv(n, "fast")
            ops = runner.ops(kv, "fast")
            times = []
            for _ in range(arguments.repeats + 1):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _logits in runner.prompt(ops, tokens, 0, [n - 1]):
                    pass
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            step = statistics.median(times[1:])
            rows.append(
                {"resident": share, "tokens": n, "ms": step * 1e3, "tokens_per_s": n / step, "first_ms": times[0] * 1e3}
            )
            print(
                f"resident {share:4.0%}, {n:5d} tokens: {step * 1e3:8.1f} ms, {n / step:8.0f} tok/s (first {times[0] * 1e3:.0f} ms)",
                flush=True,
            )
    if arguments.profile:
        profile(runner, arguments.profile, config.n_vocab)
    print(json.dumps(rows))


def profile(runner: DeviceRunner, n: int, n_vocab: int) -> None:
    """Time per kernel of one prompt."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    tokens = np.random.default_rng(1).integers(0, n_vocab, n).tolist()
    ops = runner.ops(runner.kv(n, "fast"), "fast")
    with profiler(activities=[ProfilerActivity.CUDA]) as result:
        for _logits in runner.prompt(ops, tokens, 0, [n - 1]):
            pass
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = {}
    for event in result.events():
        if event.device_type.name == "CUDA":
            entry = totals.setdefault(event.name[:48], [0, 0.0])
            entry[0] += 1
            entry[1] += event.device_time
    for name, (count, us) in sorted(totals.items(), key=lambda item: -item[1][1])[:16]:
        print(f"{name:50s} {count:6.0f} x {us / count:9.1f} us = {us / 1e3:8.2f} ms")


if __name__ == "__main__":
    main()
