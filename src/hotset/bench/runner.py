"""Measure prompt and decode speed apart, cold and warm apart, on text that real models meet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from hotset.config import SamplingParams
from hotset.errors import InputError
from hotset.experts.stats import rate

if TYPE_CHECKING:
    from hotset.engine.runner import Runner, Session
    from hotset.experts.stats import Prefetched
    from hotset.experts.trace import Trace

Kind = Literal["pp", "tg"]
# Decoding is measured behind a short prompt of real text, so that the model writes text and not noise.
LEAD = 32
# Drawn at this temperature a small model does not fall into a loop, which would flatter the expert cache.
SAMPLING = SamplingParams(temperature=0.8)
NOISY = 0.10


@dataclass(frozen=True)
class Workload:
    """One thing to measure: "pp512" reads a prompt of 512 tokens, "tg128" decodes 128."""

    kind: Kind
    n: int

    @property
    def name(self) -> str:
        return f"{self.kind}{self.n}"


@dataclass(frozen=True)
class Sample:
    """One run of a test; counts of the expert cache are of its own phase only, `fetch_ms` and `vram_bytes` None where there is no GPU.

    `cpu_seconds` is the time of all cores that this process took meanwhile.
    """

    tokens: int
    seconds: float
    hits: int
    misses: int
    bytes_fetched: int
    fetch_ms: float | None = None
    vram_bytes: int | None = None
    cpu_seconds: float | None = None
    prefetched: Prefetched | None = None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float | None:
        return rate(self.hits, self.misses)


@dataclass(frozen=True)
class Result:
    """A test's runs: `first` on an empty expert cache (it is not in the mean), `samples` after it in the order in which they ran."""

    test: Workload
    first: Sample
    samples: tuple[Sample, ...]
    cold: bool

    @property
    def rates(self) -> list[float]:
        return [s.rate for s in self.samples]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        """Standard deviation of the samples."""
        return statistics.stdev(self.rates) if len(self.samples) > 1 else 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """Fastest minus slowest, as a share of the median."""
        return (max(self.rates) - min(self.rates)) / self.median if self.median else 0.0

    @property
    def is_noisy(self) -> bool:
        return self.spread > NOISY

    @property
    def hit_rate(self) -> float | None:
        return rate(sum(s.hits for s in self.samples), sum(s.misses for s in self.samples))

    @property
    def bytes_per_token(self) -> float:
        """Bytes that misses fetched (or would have) per token."""
        return sum(s.bytes_fetched for s in self.samples) / self._tokens

    @property
    def _tokens(self) -> int:
        return sum(s.tokens for s in self.samples)

    @property
    def fetch_ms(self) -> float | None:
        """Time in which misses came in, per token."""
        times = [s.fetch_ms for s in self.samples if s.fetch_ms is not None]
        return sum(times) / self._tokens if len(times) == len(self.samples) else None

    @property
    def prefetched(self) -> tuple[float, float] | None:
        """Bytes per token that came before they were picked: needed ones, which are part of `bytes_per_token`, and those in vain."""
        counts = [s.prefetched for s in self.samples if s.prefetched is not None]
        if len(counts) < len(self.samples):
            return None
        return sum(c.needed for c in counts) / self._tokens, sum(c.in_vain for c in counts) / self._tokens

    @property
    def awaited_bytes(self) -> float:
        """Bytes per token that had not come ahead when they were missed."""
        return self.bytes_per_token - (self.prefetched[0] if self.prefetched else 0.0)

    @property
    def busy_cores(self) -> float | None:
        """How many cores of the CPU were busy, on average."""
        times = [s.cpu_seconds for s in self.samples if s.cpu_seconds is not None]
        seconds = sum(s.seconds for s in self.samples)
        return sum(times) / seconds if len(times) == len(self.samples) and seconds else None

    @property
    def vram_bytes(self) -> int | None:
        return max((s.vram_bytes for s in self.samples if s.vram_bytes is not None), default=None)


@dataclass(frozen=True)
class Plan:
    """What to run: lengths of prompts, numbers of tokens to decode (0: none), repetitions; `cold` empties the expert cache before each."""

    prompts: tuple[int, ...] = (512,)
    decodes: tuple[int, ...] = (128,)
    repeats: int = 5
    cold: bool = False

    def __post_init__(self) -> None:
        if min((*self.prompts, *self.decodes), default=0) < 0 or not self.tests:
            given = " and ".join(
                f"-{o} {','.join(map(str, ns))}" for o, ns in (("p", self.prompts), ("n", self.decodes))
            )
            raise InputError(f"{given}: give at least one number of tokens above 0")
        if self.repeats < 1:
            raise InputError(f"-r {self.repeats}: give at least 1 repetition")

    @property
    def tests(self) -> list[Workload]:
        both = [*(Workload("pp", n) for n in self.prompts), *(Workload("tg", n) for n in self.decodes)]
        return [test for test in dict.fromkeys(both) if test.n]

    @property
    def n_prompt(self) -> int:
        """The longest prompt."""
        return max(self.prompts, default=0)

    @property
    def decode_tests(self) -> list[Workload]:
        return [test for test in self.tests if test.kind == "tg"]

    @property
    def n_ctx(self) -> int:
        """The context that the longest test takes."""
        return max(self.n_prompt, LEAD + max(self.decodes, default=0)) + 1


class Tokens:
    """Token ids to feed: windows of a text that move on, so that no two runs read the same prompt."""

    def __init__(self, ids: Sequence[int]) -> None:
        if not ids:
            raise InputError("the text to measure with has no tokens; give another with -f")
        self._ids = list(ids)
        self._at = 0

    def repeats_within(self, n: int) -> bool:
        """Whether a prompt of `n` tokens would hold the text more than once."""
        return n > len(self._ids)

    def next(self, n: int) -> list[int]:
        """The next `n` ids; the text begins again where it ends."""
        window = [self._ids[(self._at + i) % len(self._ids)] for i in range(n)]
        self._at = (self._at + n) % len(self._ids)
        return window


class Peak(Protocol):
    """Tells the most memory in use since `begin`."""

    def begin(self) -> None: ...

    def read(self) -> int: ...


class Bench:
    """Runs the tests on one arm's runner; `clock` gives seconds. With `routing` decoding takes its picks from there and needs no prompt."""

    def __init__(
        self,
        runner: Runner,
        tokens: Tokens,
        plan: Plan,
        *,
        routing: Trace | None = None,
        peak: Peak | None = None,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._runner = runner
        self._tokens = tokens
        self._plan = plan
        self._routing = routing
        # Every repetition begins with an answer of its own.
        self._starts = [] if routing is None else sorted({int(o) for o in routing.offsets if o < routing.n_tokens})
        self._peak = peak
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._seed = self._decoded = 0

    def warm_up(self) -> float:
        """Run every test once, so that all code is compiled and all memory touched; returns the seconds it took."""
        began = self._clock()
        for test in self._plan.tests:
            self.first(test)
        return self._clock() - began

    def first(self, test: Workload) -> Sample:
        """A run on an empty expert cache; a trace is followed from its beginning."""
        routed = self._routing if test.kind == "tg" else None
        self._runner.set_routing(None if routed is None else routed.experts)
        self._decoded = 0
        self._runner.reset_cache()
        return self._run(test)

    def sample(self, test: Workload) -> Sample:
        """A run that counts."""
        if self._plan.cold:
            self._runner.reset_cache()
        return self._run(test)

    def _run(self, test: Workload) -> Sample:
        if self._peak:
            self._peak.begin()
        run = self._prompt(test.n) if test.kind == "pp" else self._decode(test.n)
        return replace(run, vram_bytes=self._peak.read()) if self._peak else run

    def _session(self, max_tokens: int) -> Session:
        session = self._runner.session(self._plan.n_ctx)
        self._seed += 1
        # No end token ends a measurement, and no step runs ahead of it.
        session.start(replace(SAMPLING, max_tokens=max_tokens), self._seed, frozenset())
        return session

    def _prompt(self, n: int) -> Sample:
        session, ids = self._session(1), self._tokens.next(n)
        self._runner.reset_stats()
        began, cpu_began = self._clock(), self._cpu_clock()
        session.feed(ids)
        session.next()  # the first token waits for the device
        seconds, cpu = self._clock() - began, self._cpu_clock() - cpu_began
        stats = self._runner.stats().prompt
        return Sample(n, seconds, stats.hits, stats.misses, stats.bytes_fetched, cpu_seconds=cpu)

    def _decode(self, n: int) -> Sample:
        self._runner.reset_stats()
        session = self._routed_session(n) if self._routing else self._led_session(n)
        began, cpu_began = self._clock(), self._cpu_clock()
        for _ in range(n):
            session.next()
        seconds, cpu = self._clock() - began, self._cpu_clock() - cpu_began
        stats = self._runner.stats()
        return Sample(
            n, seconds, stats.hits, stats.misses, stats.bytes_fetched, stats.fetch_ms, cpu_seconds=cpu, prefetched=stats.prefetched
        )  # fmt: skip

    def _led_session(self, n: int) -> Session:
        """Real text has been read, and the first token drawn."""
        session = self._session(n + 1)
        session.feed(self._tokens.next(LEAD))
        session.next()
        return session

    def _routed_session(self, n: int) -> Session:
        """The next step takes the first picks of an answer."""
        session = self._session(n)
        session.begin(self._tokens.next(1)[0], trace_at=self._starts[self._decoded % len(self._starts)])
        self._decoded += 1
        return session


def results(arms: Sequence[Bench], plan: Plan) -> Iterator[list[Result]]:
    """Measure test after test; of each, every arm's result. The order of arms turns with every repetition."""
    for test in plan.tests:
        first = [arm.first(test) for arm in arms]
        samples: list[list[Sample]] = [[] for _ in arms]
        for repetition in range(plan.repeats):
            order = range(len(arms))
            for i in reversed(order) if repetition % 2 else order:
                samples[i].append(arms[i].sample(test))
        yield [Result(test, f, tuple(s), plan.cold) for f, s in zip(first, samples, strict=True)]
