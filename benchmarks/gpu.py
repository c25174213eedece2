r"""Decode and prefill on a GPU, many arms after one load, each beside what the bus and the memory allow.

    python benchmarks/gpu.py MODEL.gguf --warm 1000 --steps 4000 \
        --arm routing=qwen3-like.npz,size=25%+37.5%+50%,bus=1+2+4 \
        --arm routing=qwen3-like.npz,size=50%+75%,rows=8 --arm routing=random,size=8slots
    python benchmarks/gpu.py MODEL.gguf --resident 1,0.5,0 --tokens 32,128,512,2048,4096

A decode arm is `key=value` with commas; `+` lists values, and every combination is an arm of its own:

    routing  a recorded trace (.npz), random, repeat, or model (the model's own router)      [model]
    size     slots: 25%, 8slots, 6GiB, off; 100% is resident from the start                  [100%]
    policy   lrfu:16, product, lru, lfu, static                                              [lrfu:16]
    rows     sequences that step together, from 1 to 8, each from another part of the trace  [1]
    bus      how many times every span is fetched                                            [1]
    prefetch 0: no misses of the next layer come before its router has decided               [1]
    warm, steps   steps that are not counted, and that are, in place of --warm and --steps

Row 0 follows the trace from its beginning: warm steps are its tokens 0 .. warm, what is measured are the steps after them, in windows.
The ceiling of a window is the resident step of the same window + missed bytes / pinned copy rate at the span's size. The resident arm
that this takes is added where it is missing. Prompts are random token ids through the model's own router; their ceiling is the larger
of the bytes that they need / pinned copy rate and the time with everything resident. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import hotset
from hotset.bench.routing import routing_trace
from hotset.checkpoint import open_model
from hotset.engine.device import DeviceModel, DeviceRunner
from hotset.engine.loading import resolve
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheSize
from hotset.experts.stats import Prefetched
from hotset.experts.trace import Trace
from hotset.experts.waves import ExpertWaves
from hotset.kernels.matvec import DeviceMatrix
from hotset.model.batch import MAX_ROWS
from hotset.model.chunk_ops import ChunkBatch, ChunkOps
from hotset.model.transformer import forward
from hotset.plan.bus import memory_rate, pinned_copy_rates, zero_copy_rate
from hotset.plan.planner import PlannedModel

PARAMS = hotset.SamplingParams(temperature=0)
KERNELS_SHOWN = 20
GB, GIB = 1e9, 1 << 30


@dataclass(frozen=True)
class Arm:
    """One way of decoding."""

    routing: str = "model"
    size: str = "100%"
    policy: str = "lrfu:16"
    rows: int = 1
    bus: int = 1
    prefetch: int = 1
    warm: int = 1000
    steps: int = 4000

    @property
    def resident(self) -> Arm:
        """The same steps with every expert on the GPU."""
        return replace(self, size="100%", policy="lrfu:16", bus=1, prefetch=1)

    def __str__(self) -> str:
        return f"{self.routing.rsplit('/', 1)[-1]} {self.size} {self.policy} rows {self.rows} bus {self.bus} prefetch {self.prefetch}"


@dataclass(frozen=True)
class Machine:
    """What was measured of the machine: bytes per second."""

    gpu: str
    pinned_copy: dict[int, float]
    zero_copy: dict[int, float]
    gpu_memory: float

    def bus_s(self, bytes_by_size: dict[int, int]) -> float:
        """Seconds that copies at the spans' sizes take."""
        return sum(n / self.pinned_copy[size] for size, n in bytes_by_size.items())


@dataclass(frozen=True)
class Window:
    """Some steps in a row; bytes of misses by span size, `read` is all that the GPU's memory must give, `ahead` what came before it was picked and what of
    it was needed.
    """

    steps: int
    seconds: float
    host_s: float
    fetch_s: float
    hits: int
    misses: int
    missed: dict[int, int]
    read: int
    ahead: Prefetched

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


@dataclass
class Decoded:
    """An arm's windows, and the tokens that went before them."""

    arm: Arm
    n_slots: tuple[int, ...]
    warm_s: float
    vram_bytes: int
    windows: list[Window] = field(default_factory=list)

    def facts(self, machine: Machine, resident: Decoded | None) -> dict[str, Any]:
        """Everything as plain values; ms are per step."""
        arm, windows = self.arm, self.windows
        steps = sum(w.steps for w in windows)
        missed = sum(sum(w.missed.values()) for w in windows)
        hits, misses = sum(w.hits for w in windows), sum(w.misses for w in windows)
        fetch_s = sum(w.fetch_s for w in windows)
        needed = sum(w.ahead.needed for w in windows)
        came = needed + sum(w.ahead.in_vain for w in windows)
        step = statistics.median(w.step_s for w in windows)
        facts = asdict(arm) | {
            "n_slots": sorted(set(self.n_slots)), "ms": step * 1e3, "tokens_per_s": arm.rows / step,
            "mean_ms": sum(w.seconds for w in windows) / steps * 1e3, "windows_ms": [w.step_s * 1e3 for w in windows],
            "spread_ms": (max(w.step_s for w in windows) - min(w.step_s for w in windows)) * 1e3,
            "host_ms": statistics.median(w.host_s / w.steps for w in windows) * 1e3,
            "hit_rate": hits / (hits + misses) if hits + misses else None, "mib_per_step": missed / steps / 2**20,
            "ahead_mib": came / steps / 2**20, "ahead_needed_mib": needed / steps / 2**20,
            "fetch_ms": fetch_s / steps * 1e3, "fetch_gb_per_s": (missed - needed) * arm.bus / fetch_s / GB if fetch_s else None,
            "memory_floor_ms": statistics.median(w.read / w.steps for w in windows) / machine.gpu_memory * 1e3,
            "warm_s": self.warm_s, "vram_gib": self.vram_bytes / GIB,
        }  # fmt: skip
        return facts | (self._ceilings(machine, resident) if resident else {})

    def _ceilings(self, machine: Machine, resident: Decoded) -> dict[str, Any]:
        """Per window, for windows differ in what they miss; medians of them."""
        copied, mapped = [], []
        for own, best in zip(self.windows, resident.windows, strict=True):
            bus = {size: n * self.arm.bus / own.steps for size, n in own.missed.items()}
            copied.append(best.step_s + machine.bus_s(bus))
            mapped.append(best.step_s + sum(bus.values()) / machine.zero_copy[self.arm.rows])
        ratios = [own.step_s / ceiling for own, ceiling in zip(self.windows, copied, strict=True)]
        return {
            "resident_ms": statistics.median(w.step_s for w in resident.windows) * 1e3,
            "ceiling_ms": statistics.median(copied) * 1e3,
            "ceiling_tokens_per_s": self.arm.rows / statistics.median(copied),
            "ratio": statistics.median(ratios),
            "ratio_spread": max(ratios) - min(ratios),
            "zero_copy_ceiling_ms": statistics.median(mapped) * 1e3,
            "zero_copy_ratio": statistics.median(own.step_s / c for own, c in zip(self.windows, mapped, strict=True)),
        }


class Bench:
    """A loaded model whose weights and experts all arms share."""

    def __init__(self, engine: hotset.Engine, options: argparse.Namespace) -> None:
        runner = engine.runner
        assert isinstance(runner, DeviceRunner)
        self.model: DeviceModel = runner.model
        self.options = options
        self.trace = cache(self._trace)

    def _trace(self, routing: str) -> Trace | None:
        return None if routing == "model" else routing_trace(routing, self.model.config)

    def n_slots(self, size: str) -> tuple[int, ...]:
        shape = self.model.cache.shape
        return CacheSize.parse(size).n_slots(shape.span_bytes, shape.n_experts)

    def runner(
        self, size: str, policy: str = "lrfu:16", bus: int = 1, *, prefetch: bool = True, **options: Any
    ) -> DeviceRunner:
        """A runner with a cache of its own; one that holds every expert starts full."""
        n_slots = self.n_slots(size)
        cache = self.model.cache.beside(n_slots, Policy.parse(policy), bus_factor=bus, prefetch=prefetch)
        if n_slots == cache.shape.n_experts:
            for layer, n in enumerate(n_slots):
                cache.seed(layer, range(n))
        return DeviceRunner(replace(self.model, cache=cache), use_graphs=not self.options.no_graph, **options)

    def decode(self, arm: Arm) -> Decoded:
        """Warm up, then measure window after window."""
        release()
        n_ctx = arm.warm + arm.steps + self.options.profile + 2
        runner = self.runner(arm.size, arm.policy, arm.bus, prefetch=bool(arm.prefetch), n_ctx=n_ctx)
        seat = runner.seat(arm.rows)
        if trace := self.trace(arm.routing):
            seat.follow(torch.from_numpy(trace.experts.astype(np.int16)).to(self.model.device))
            for row, start in enumerate(row_starts(trace, arm.rows)):
                seat.begin_at(row, start)
        for row in range(arm.rows):
            seat.place(row, [row + 1], PARAMS, 0, ())
        cache = runner.model.cache
        began = time.perf_counter()
        run_steps(seat, arm.warm)
        result = Decoded(arm, cache.shape.n_slots, time.perf_counter() - began, 0)
        for n in np.diff(np.linspace(0, arm.steps, self.options.windows + 1).astype(int)).tolist():
            cache.reset_stats()
            seconds, host_s = run_steps(seat, n)
            result.windows.append(self.window(cache, n, seconds, host_s))
        result.vram_bytes = torch.cuda.max_memory_reserved()
        if self.options.profile:
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                run_steps(seat, self.options.profile)
            show_kernels(profiled, self.options.profile)
        return result

    def window(self, cache: Any, steps: int, seconds: float, host_s: float) -> Window:
        stats = cache.stats()
        missed: dict[int, int] = {}
        for size, n_bytes in zip(stats.span_bytes, stats.layer_bytes, strict=True):
            missed[size] = missed.get(size, 0) + n_bytes
        spans = sum((h + m) * b for h, m, b in zip(stats.hits, stats.misses, stats.span_bytes, strict=True))
        return Window(
            steps, seconds, host_s, (cache.fetch_ms() or 0) / 1e3, sum(stats.hits), sum(stats.misses), missed,
            spans + steps * self.dense_bytes, cache.prefetched() or Prefetched(0, 0),
        )  # fmt: skip

    @property
    def dense_bytes(self) -> int:
        """Bytes of weights that every step reads, whatever its picks (the embedding, of which a step reads a few rows, left out)."""
        weights = self.model.weights
        found = {id(m): m for part in (*weights.layers, weights.output) for m in matrices(part)}
        return sum(m.data.numel() * m.data.element_size() for m in found.values())

    def prompts(self, share: float, lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Prompts of several lengths with a share of every layer's experts resident."""
        release()
        longest = max(lengths)
        n_slots = int(share * self.model.config.n_experts)
        runner = self.runner(f"{n_slots}slots", n_ctx=longest + 1, chunk_rows=longest)
        for layer in range(self.model.config.n_layers):
            runner.model.cache.seed(layer, range(n_slots))
        for n in lengths:
            tokens = np.random.default_rng(n).integers(0, self.model.config.n_vocab, n).tolist()
            picked = picked_experts(runner, tokens)
            needed: dict[int, int] = {}
            for size, chosen in zip(self.model.bank.span_bytes, picked, strict=True):
                needed[size] = needed.get(size, 0) + size * int(chosen[n_slots:].sum())
            ops = runner.ops(runner.kv(n, "fast"), "fast")
            runner.reset_stats()
            seconds = [prompt_seconds(runner, ops, tokens) for _ in range(self.options.repeats + 1)]
            step = statistics.median(seconds[1:])
            yield {
                "resident": share, "tokens": n, "ms": step * 1e3, "tokens_per_s": n / step, "first_ms": seconds[0] * 1e3,
                "samples_ms": [s * 1e3 for s in seconds[1:]], "spread_ms": (max(seconds[1:]) - min(seconds[1:])) * 1e3,
                "distinct_experts": [int(chosen.sum()) for chosen in picked], "needed_by_span": needed,
                "streamed_mib": runner.stats().prompt.bytes_fetched / len(seconds) / 2**20,
                "vram_gib": torch.cuda.max_memory_reserved() / GIB,
            }  # fmt: skip
        if self.options.profile:
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                prompt_seconds(runner, ops, tokens)
            show_kernels(profiled, 1)


def matrices(part: Any) -> Iterator[DeviceMatrix]:
    """All matrices that a part of the weights holds, however deep."""
    if isinstance(part, DeviceMatrix):
        yield part
    elif is_dataclass(part):
        for each in fields(part):
            yield from matrices(getattr(part, each.name))
    elif isinstance(part, (tuple, list)):
        for each in part:
            yield from matrices(each)


class CountingOps(ChunkOps):
    """Notes which experts the rows of a chunk pick in each layer."""

    picked: list[np.ndarray]

    def route(self, logits: Any, layer: Any, batch: Any) -> Any:
        picks, weights = super().route(logits, layer, batch)
        chosen = np.zeros(self.config.n_experts, np.bool_)
        chosen[picks.cpu().numpy().reshape(-1)] = True
        self.picked.append(chosen)
        return picks, weights


def picked_experts(runner: DeviceRunner, tokens: list[int]) -> list[np.ndarray]:
    """Which experts a prompt of one chunk picks: bool [n_experts] per layer; compiles what timing the prompt will run."""
    model, n = runner.model, len(tokens)
    assert runner.chunks
    waves = ExpertWaves(model.bank, model.cache, runner.chunks.staging, take_all=True)
    ops = CountingOps(model.config, runner.kv(n, "fast"), runner.chunks.scratch, waves)
    ops.picked = []
    forward(ops, model.weights, ChunkBatch(runner.prompt_rows(tokens, 0, n), (n - 1,)))
    return ops.picked


def prompt_seconds(runner: DeviceRunner, ops: Any, tokens: list[int]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _logits in runner.prompt(ops, tokens, 0, [len(tokens) - 1]):
        pass
    torch.cuda.synchronize()
    return time.perf_counter() - began


def run_steps(seat: Any, n: int) -> tuple[float, float]:
    """Seconds that `n` steps took, and that the host spent starting them."""
    torch.cuda.synchronize()
    host_s = 0.0
    began = time.perf_counter()
    for _ in range(n):
        at = time.perf_counter()
        seat.step()
        host_s += time.perf_counter() - at
        if seat.pending > 1:
            seat.read()
    seat.discard()
    torch.cuda.synchronize()
    return time.perf_counter() - began, host_s


def row_starts(trace: Trace, rows: int) -> list[int]:
    """Where each row begins: at the answers nearest to equal parts of the trace."""
    answers = trace.offsets[:-1].astype(np.int64)
    return [int(answers[np.abs(answers - row * trace.n_tokens // rows).argmin()]) for row in range(rows)]


def release() -> None:
    """Give back what the last arm held."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def show_kernels(profiled: profile, n: int) -> None:
    """Time per kernel, the longest first."""
    totals: dict[str, tuple[int, float]] = {}
    for event in profiled.events():
        if event.device_type.name == "CUDA":
            count, us = totals.get(event.name[:48], (0, 0.0))
            totals[event.name[:48]] = (count + 1, us + event.device_time)
    say(f"  {sum(us for _, us in totals.values()) / n / 1e3:.3f} ms in kernels")
    for name, (count, us) in sorted(totals.items(), key=lambda item: -item[1][1])[:KERNELS_SHOWN]:
        say(f"  {name:48s} {count / n:7.1f} x {us / count:9.1f} us = {us / n / 1e3:8.3f} ms")


def parse_arms(texts: Sequence[str], warm: int, steps: int) -> list[Arm]:
    """The arms that --arm names, in their order."""
    arms = []
    for text in texts:
        given: dict[str, list[Any]] = {"warm": [warm], "steps": [steps]}
        for part in text.split(","):
            key, _, values = part.partition("=")
            if key not in Arm.__dataclass_fields__ or not values:
                sys.exit(f"--arm {text!r}: {part!r} is not one of {', '.join(Arm.__dataclass_fields__)} with a value")
            kind = type(Arm.__dataclass_fields__[key].default)
            given[key] = [kind(value) for value in values.split("+")]
        arms += [Arm(**dict(zip(given, values, strict=True))) for values in product(*given.values())]
    for arm in arms:
        if not 1 <= arm.rows <= MAX_ROWS or arm.bus < 1 or arm.steps < 1 or arm.warm < 0:
            sys.exit(f"--arm {arm}: give 1 to {MAX_ROWS} rows, and bus and steps of at least 1")
        if CacheSize.parse(arm.size).kind == "auto":
            sys.exit(f"--arm {arm}: give a size, as in 25%, for arms are compared at sizes that are known")
        Policy.parse(arm.policy)
    return arms


def decode_all(bench: Bench, arms: list[Arm], machine: Machine) -> Iterator[dict[str, Any]]:
    """Every arm's facts; resident arms run first, for the others' ceilings are made of them."""
    residents: dict[Arm, Decoded | None] = {}
    for arm in dict.fromkeys(arm.resident for arm in arms):
        try:
            residents[arm] = found = bench.decode(arm)
        except torch.OutOfMemoryError as error:
            say(f"{arm}: not measured, for it does not fit ({str(error).splitlines()[0]})")
            residents[arm] = None
        else:
            yield show_decoded(found, machine, found)
    for arm in arms:
        if arm not in residents:
            yield show_decoded(bench.decode(arm), machine, residents[arm.resident])


def show_decoded(result: Decoded, machine: Machine, resident: Decoded | None) -> dict[str, Any]:
    f = result.facts(machine, resident)
    ceiling = (
        f"ceiling {f['ceiling_ms']:.3f} ms, ratio {f['ratio']:.3f} (zero copy {f['zero_copy_ratio']:.3f})"
        if resident
        else "no ceiling"
    )
    say(
        f"{result.arm}: {f['ms']:.3f} ms/step ({f['tokens_per_s']:.1f} tok/s, spread {f['spread_ms']:.3f} ms, host {f['host_ms']:.3f} ms) "
        f"hit {f['hit_rate'] or 0:.4f}, {f['mib_per_step']:.1f} MiB/step ({f['ahead_needed_mib']:.1f} of {f['ahead_mib']:.1f} ahead), fetch {f['fetch_ms']:.3f} ms at {f['fetch_gb_per_s'] or 0:.1f} GB/s; "
        f"{ceiling}; memory floor {f['memory_floor_ms']:.3f} ms; {f['vram_gib']:.1f} GiB (warm-up {f['warm_s']:.1f} s)"
    )
    return f


def prefill_all(bench: Bench, shares: list[float], lengths: list[int], machine: Machine) -> Iterator[dict[str, Any]]:
    """Every share and length; the largest share runs first, for it says how long computing takes."""
    resident: dict[int, float] = {}
    for share in sorted(shares, reverse=True):
        for row in bench.prompts(share, lengths):
            if share == 1:
                resident[row["tokens"]] = row["ms"]
            bus_ms = machine.bus_s(row["needed_by_span"]) * 1e3
            compute_ms = resident.get(row["tokens"])
            ceiling = max(bus_ms, compute_ms or 0.0)
            row |= {
                "bus_ms": bus_ms,
                "compute_ms": compute_ms,
                "ceiling_ms": ceiling,
                "ratio": row["ms"] / ceiling if ceiling else None,
            }
            distinct = row["distinct_experts"]
            say(
                f"resident {share:4.0%}, {row['tokens']:5d} tokens: {row['ms']:8.1f} ms, {row['tokens_per_s']:8.0f} tok/s "
                f"(spread {row['spread_ms']:.1f} ms, first {row['first_ms']:.0f} ms); bus {bus_ms:.1f} ms, compute {compute_ms or 0:.1f} ms, "
                f"ratio {row['ratio'] or 0:.2f}; distinct experts per layer {min(distinct)}-{max(distinct)}, mean {statistics.fmean(distinct):.1f}; "
                f"streamed {row['streamed_mib']:.0f} MiB; {row['vram_gib']:.1f} GiB"
            )
            yield row


def measure_machine(model: DeviceModel, rows: set[int]) -> Machine:
    k = model.config.n_picks
    machine = Machine(
        gpu=torch.cuda.get_device_name(),
        pinned_copy=pinned_copy_rates(model.bank, model.device),
        zero_copy={n: zero_copy_rate(model.cache, n * k) for n in sorted(rows | {1})},
        gpu_memory=memory_rate(model.device),
    )
    copies = ", ".join(f"{rate / GB:.1f} GB/s at {size / 1e6:.2f} MB" for size, rate in machine.pinned_copy.items())
    zero = ", ".join(f"{rate / GB:.1f} GB/s at {n * k} experts" for n, rate in machine.zero_copy.items())
    say(
        f"{machine.gpu}: pinned copy {copies}; zero copy {zero}; memory {machine.gpu_memory / GB:.0f} GB/s (read and write)"
    )
    return machine


def shape_facts(path: str) -> dict[str, Any]:
    """What benchmarks/forecast.py must know of a model."""
    with open_model(resolve(path)) as file:
        work = PlannedModel.of(file).work
    return {
        "shape": Path(path).stem, "n_layers": work.n_layers, "n_picks": work.n_picks, "dense_bytes_read": work.dense_bytes,
        "span_bytes": dict(Counter(work.span_bytes)),
    }  # fmt: skip


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--arm", action="append", default=[], metavar="KEY=VALUE,...", help="a decode arm; repeatable")
    parser.add_argument("--warm", type=int, default=1000, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=4000, help="measured steps")
    parser.add_argument("--windows", type=int, default=5, help="parts of the measured steps, timed apart")
    parser.add_argument(
        "--resident",
        default="",
        metavar="SHARE,...",
        help="read prompts with so much of the experts resident, as in 1,0.5,0",
    )
    parser.add_argument("--tokens", default="32,128,512,2048,4096", metavar="N,...", help="lengths of the prompts")
    parser.add_argument("--repeats", type=int, default=5, help="prompts of each length that count")
    parser.add_argument(
        "--profile",
        type=int,
        default=0,
        metavar="STEPS",
        help="show kernels of so many more steps of every arm (and of the longest prompt)",
    )
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--out", metavar="FILE", help="keep the JSON here too, after every arm")
    options = parser.parse_args()
    arms = parse_arms(options.arm, options.warm, options.steps)
    shares = [float(s) for s in options.resident.split(",") if s]
    lengths = sorted(int(n) for n in options.tokens.split(","))
    began = time.perf_counter()
    engine = hotset.load(options.model, device="cuda", expert_cache="off", n_ctx=64)
    load_s = time.perf_counter() - began
    say(f"loaded in {load_s:.1f} s")
    bench = Bench(engine, options)
    for arm in arms:  # a trace that does not fit the model shows before anything is measured
        bench.trace(arm.routing)
    machine = measure_machine(bench.model, {arm.rows for arm in arms})
    facts: dict[str, Any] = {
        **shape_facts(options.model),
        "model": options.model,
        "torch": torch.__version__,
        "load_s": load_s,
        "machine": asdict(machine),
    }
    results = {"decode": decode_all(bench, arms, machine), "prefill": prefill_all(bench, shares, lengths, machine)}
    for kind, rows in results.items():
        facts[kind] = []
        for row in rows:
            facts[kind].append(row)
            if options.out:  # what is measured stays, whatever becomes of the rest
                Path(options.out).write_text(json.dumps(facts), encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
