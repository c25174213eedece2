"""What `hotset bench` runs: several expert caches on one loaded model, measured side by side where they fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from hotset.cli.bench_texts import cache_text, first_line, names, policy_text, show_card
from hotset.cli.opening import Choices, open_engine
from hotset.cli.output import loading_bar, say
from hotset.errors import UnsupportedError

if TYPE_CHECKING:
    from hotset.bench.arms import Arm, Placed
    from hotset.bench.report import Line, Setting
    from hotset.bench.runner import Bench, Plan, Result
    from hotset.cli.inspection import Inspection
    from hotset.engine.device import DeviceRunner
    from hotset.engine.engine import Engine
    from hotset.engine.nvml import GpuState
    from hotset.engine.runner import Runner
    from hotset.experts.trace import Trace
    from hotset.plan.hardware import Machine


@dataclass(frozen=True)
class Measuring:
    """All arms on one loaded model; `alone`: the only arm is the model as it was loaded."""

    choices: Choices
    plan: Plan
    arms: Sequence[Arm]
    text: str | None
    routing: str | None
    bus_factor: int
    alone: bool
    read_rates: dict[int, float] = field(default_factory=dict)

    @cached_property
    def on_gpu(self) -> DeviceRunner | None:
        """The loaded model's runner where that is a GPU's."""
        if self.engine.device == "cpu":
            return None
        from hotset.engine.device import DeviceRunner

        runner = self.engine.runner
        assert isinstance(runner, DeviceRunner)
        return runner

    def read_rate(self, threads: int) -> float:
        """Bytes per second of the memory that weights are read from."""
        if threads not in self.read_rates:
            if self.on_gpu is None:
                self.read_rates[threads] = memory_rate(threads)
            else:
                from hotset.plan import bus

                self.read_rates[threads] = bus.memory_rate(self.on_gpu.model.device)
        return self.read_rates[threads]

    @cached_property
    def bus_rate(self) -> float | None:
        """Bytes per second of pinned copies at the spans' sizes, None where nothing is fetched."""
        if self.on_gpu is None or not self.on_gpu.model.bank.span_bytes:
            return None
        from hotset.plan.bus import mixed_rate, pinned_copy_rates

        model = self.on_gpu.model
        return mixed_rate(pinned_copy_rates(model.bank, model.device), model.bank.span_bytes)

    @cached_property
    def inspection(self) -> Inspection:
        from hotset.checkpoint import open_model
        from hotset.cli.inspection import inspect_file
        from hotset.engine.loading import resolve

        with loading_bar() as progress:
            path = resolve(self.choices.model, progress)
        with open_model(path) as opened:
            return inspect_file(opened)

    @cached_property
    def trace(self) -> Trace | None:
        """What --routing names, read (and refused) before a long load begins."""
        from hotset.bench.routing import routing_trace

        if self.routing is None:
            return None
        needs = self.inspection.needs
        return None if needs is None else routing_trace(self.routing, needs.config)

    @cached_property
    def engine(self) -> Engine:
        return open_engine(self.choices)

    @cached_property
    def ids(self) -> list[int]:
        return bench_ids(self.engine, self.text)

    def lines(self) -> Iterator[Line]:
        """The results of every arm; arms that fit together run together."""
        from hotset.bench.arms import turns

        _ = self.trace
        room, arms = self.room, self.placed
        show_card(self.setting(arms[0]))
        if self.plan.decode_tests and self.forecast_problem:
            say(f"note: no forecast: {self.forecast_problem}")
        if len(self.ids) < self.plan.n_prompt:
            say(
                f"note: the text is shorter than {self.plan.n_prompt:,} tokens, so prompts repeat it; give a longer one with -f"
            )
        groups = turns(arms, room)
        if len(arms) > 1:
            together = "side by side, in an order that turns with every repetition"
            say(
                f"{len(arms)} arms, {together if len(groups) == 1 else 'one after another, for they do not fit together'}"
            )
        resident_s = None
        for group in groups:
            for line in self.measure(group, resident_s):
                resident_s = line.resident_s
                yield line

    @cached_property
    def room(self) -> int | None:
        """Bytes of GPU memory for arms, None on the CPU."""
        return self.engine.memory.room if self.on_gpu else None

    @cached_property
    def placed(self) -> list[Placed]:
        """The arms with their slots; on a GPU one with every expert resident is added where it fits, for the ceilings are made of it."""
        from hotset.bench.arms import RESIDENT, Placed, placed
        from hotset.engine.memory import kv_bytes
        from hotset.errors import PlacementError

        shape, room = self.engine.runner.shape, self.room
        kv = kv_bytes(self.engine.config, self.plan.n_ctx, 1, self.choices.kv_types)
        arms = (
            [Placed(self.arms[0], shape.n_slots, 0)] if self.alone else [placed(a, shape, room, kv) for a in self.arms]
        )
        full = any(a.n_slots == shape.n_experts for a in arms)
        if room is None or full or not self.plan.decode_tests:
            return arms
        try:
            arms.append(placed(RESIDENT, shape, room, kv))
        except PlacementError:
            say("all experts together do not fit, so ceilings are made of bytes and measured rates")
        else:
            say(f"added for the ceilings: {RESIDENT}, with every expert resident")
        return arms

    def measure(self, group: Sequence[Placed], resident_s: float | None) -> Iterator[Line]:
        """The tests of arms that are there together."""
        from hotset.bench.report import Line
        from hotset.bench.runner import results

        runs = [self.bench(arm, apart=sum(a.sure_bytes for a in group) - arm.sure_bytes) for arm in group]
        for arm, run in zip(group, runs, strict=True):
            say(f"warm-up (compiling, first touch of memory){self.named(arm)}, not counted: {run.warm_up():.2f} s")
        for found in results(runs, self.plan):
            resident_s = min(
                [s for a, r in zip(group, found, strict=True) if (s := self.resident_step(a, r))], default=resident_s
            )
            gpu = self.gpu_state()
            for arm, result in zip(group, found, strict=True):
                say(first_line(result, self.named(arm)))
                yield Line(self.setting(arm), result, resident_s, forecast=self.forecast(arm, result), gpu=gpu)
            if gpu:
                say(f"the GPU right after: {gpu}")
        if self.on_gpu:
            from hotset.bench.vram import release

            del runs, run
            release()

    @cached_property
    def machine(self) -> Machine | None:
        """What `hotset doctor` measured here."""
        from hotset.plan.hardware import known_machine

        return known_machine()

    @property
    def forecast_problem(self) -> str:
        """Why nothing can be forecast, "" where it can."""
        if self.machine is None:
            return "this machine was not measured yet: run `hotset doctor` once"
        if self.on_gpu is not None and self.machine.gpu is None:
            return "the kept figures know no GPU: run `hotset doctor --again`"
        return ""

    def gpu_state(self) -> GpuState | None:
        """Link, clock and power of the GPU now, while they are still what they were in the test."""
        if self.on_gpu is None:
            return None
        from hotset.engine.nvml import state_of

        return state_of(self.on_gpu.model.device)

    def forecast(self, arm: Placed, result: Result) -> float | None:
        """Tokens per second that the kept figures promise at the misses that were counted, None where they are lacking. What came ahead took no time."""
        from hotset.host.threads import checked_threads
        from hotset.plan.forecast import Rates, Work, cpu_band, step_s

        needs, machine = self.inspection.needs, self.machine
        if needs is None or machine is None or result.test.kind != "tg":
            return None
        work = Work.of(needs.config, needs.traffic, needs.span_bytes)
        if self.on_gpu is None:
            return cpu_band(work, machine, checked_threads(arm.arm.threads)).expected
        if machine.gpu is None:
            return None
        hits = 1 - result.awaited_bytes / work.expert_bytes if work.expert_bytes else 1.0
        return 1 / step_s(work, replace(Rates.of(machine), bus_factor=self.bus_factor), hits)

    def resident_step(self, arm: Placed, result: Result) -> float | None:
        """Seconds of a step of a GPU that holds every expert; what the first uses of some had to fetch is taken off."""
        is_resident = arm.n_slots == self.engine.runner.shape.n_experts
        if self.on_gpu is None or result.test.kind != "tg" or not is_resident:
            return None
        return 1 / result.mean - (result.fetch_ms or 0) / 1e3

    def named(self, arm: Placed) -> str:
        """What tells the arm from the others, "" for the only one."""
        return self.names[self.placed.index(arm)]

    @cached_property
    def names(self) -> list[str]:
        return names([self.setting(arm) for arm in self.placed])

    def runner(self, arm: Placed) -> Runner:
        if self.alone and not arm.n_bytes:
            return self.engine.runner
        return self.engine.runner.beside(
            arm.n_slots, arm.arm.policy, threads=arm.arm.threads, bus_factor=self.bus_factor
        )

    def bench(self, arm: Placed, apart: int) -> Bench:
        from hotset.bench.runner import Bench, Tokens

        peak = None
        if self.on_gpu:
            from hotset.bench.vram import VramPeak

            peak = VramPeak(self.engine.memory.bytes_of("CUDA context"), apart)
        return Bench(self.runner(arm), Tokens(self.ids), self.plan, routing=self.trace, peak=peak)

    def setting(self, arm: Placed) -> Setting:
        from hotset.bench.report import Setting
        from hotset.host.threads import checked_threads

        engine, inspection = self.engine, self.inspection
        threads = checked_threads(arm.arm.threads)
        return Setting(
            model=f"{engine.config.architecture} {engine.config.name}",
            size=inspection.file.total_bytes,
            params=inspection.n_parameters,
            backend=engine.device.upper(),
            threads=threads,
            cache=cache_text(arm, engine.config.n_experts),
            policy=policy_text(arm, counted=self.on_gpu is None),
            active=self.on_gpu is not None and sum(arm.n_slots) > 0,
            per_token=inspection.needs.traffic.per_token if inspection.needs else 0,
            read_rate=self.read_rate(threads),
            n_slots=arm.n_slots,
            n_experts=engine.config.n_experts,
            n_picks=engine.config.n_picks,
            bus_rate=self.bus_rate,
            bus_factor=self.bus_factor,
            routing=self.routing,
        )


def memory_rate(threads: int) -> float:
    from hotset.plan.dram import BUFFER_BYTES, buffer, read_rate

    return read_rate(buffer(BUFFER_BYTES), threads)


def bench_ids(engine: Engine, text: str | None) -> list[int]:
    """Ids of the text; random ones, said loudly, for a model without a tokenizer."""
    from importlib.resources import files

    import numpy as np

    source = text if text is not None else files("hotset").joinpath("data/bench.txt").read_text("utf-8")
    try:
        return engine.tokenize(source, add_special=False)
    except UnsupportedError:
        say(
            "WARNING: the model has no tokenizer, so random token ids are fed: speeds hold, hit rates do not carry over to text"
        )
        ids: list[int] = np.random.default_rng(0).integers(0, engine.config.n_vocab, 1 << 16).tolist()
        return ids
