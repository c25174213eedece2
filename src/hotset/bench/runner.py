"""Measure prompt and decode speed apart, cold and warm apart, on text that real models meet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hotset.config import SamplingParams
from hotset.errors import InputError

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.engine.stats import PhaseStats, Stats

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
    """One run of a test; counts of the expert cache are of its own phase only."""

    tokens: int
    seconds: float
    hits: int
    misses: int
    bytes_fetched: int

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


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
        hits, misses = sum(s.hits for s in self.samples), sum(s.misses for s in self.samples)
        return hits / (hits + misses) if hits + misses else None

    @property
    def bytes_per_token(self) -> float:
        """Bytes that misses fetched (or would have) per token."""
        return sum(s.bytes_fetched for s in self.samples) / sum(s.tokens for s in self.samples)


@dataclass(frozen=True)
class Plan:
    """What to run: prompt tokens, tokens to decode (0: leave out), repetitions; `cold` empties the expert cache before each."""

    n_prompt: int = 512
    n_decode: int = 128
    repeats: int = 5
    cold: bool = False

    def __post_init__(self) -> None:
        if self.n_prompt < 0 or self.n_decode < 0 or not self.n_prompt + self.n_decode:
            raise InputError(f"-p {self.n_prompt} and -n {self.n_decode}: give at least one number of tokens above 0")
        if self.repeats < 1:
            raise InputError(f"-r {self.repeats}: give at least 1 repetition")

    @property
    def tests(self) -> list[Workload]:
        both: list[Workload] = [Workload("pp", self.n_prompt), Workload("tg", self.n_decode)]
        return [t for t in both if t.n]

    @property
    def n_ctx(self) -> int:
        """The context that the longest test takes."""
        return max(self.n_prompt, LEAD + self.n_decode) + 1


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


class Bench:
    """Runs the tests on an engine; `clock` gives seconds."""

    def __init__(
        self, engine: Engine, tokens: Tokens, plan: Plan, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine = engine
        self._tokens = tokens
        self._plan = plan
        self._clock = clock
        self._seed = 0

    def warm_up(self) -> float:
        """Run every test once, so that all code is compiled and all memory touched; returns the seconds it took."""
        began = self._clock()
        for test in self._plan.tests:
            self._run(test)
        return self._clock() - began

    def results(self) -> Iterator[Result]:
        """Measure test after test."""
        for test in self._plan.tests:
            self._engine.runner.reset_cache()
            first = self._run(test)
            yield Result(test, first, tuple(self._sample(test) for _ in range(self._plan.repeats)), self._plan.cold)

    def _sample(self, test: Workload) -> Sample:
        if self._plan.cold:
            self._engine.runner.reset_cache()
        return self._run(test)

    def _run(self, test: Workload) -> Sample:
        return self._prompt(test.n) if test.kind == "pp" else self._decode(test.n)

    def _session(self) -> Any:
        session = self._engine.session(self._plan.n_ctx)
        self._seed += 1
        session.start(SAMPLING, self._seed, frozenset())  # no end token ends a measurement
        return session

    def _prompt(self, n: int) -> Sample:
        session, ids = self._session(), self._tokens.next(n)
        self._engine.reset_stats()
        began = self._clock()
        session.feed(ids)
        session.next()  # the first token waits for the device
        seconds = self._clock() - began
        return sample(n, seconds, self._engine.stats().prompt)

    def _decode(self, n: int) -> Sample:
        session, ids = self._session(), self._tokens.next(LEAD)
        session.feed(ids)
        session.next()
        self._engine.reset_stats()
        began = self._clock()
        for _ in range(n):
            session.next()
        seconds = self._clock() - began
        return sample(n, seconds, self._engine.stats())


def sample(n: int, seconds: float, counts: PhaseStats | Stats) -> Sample:
    return Sample(n, seconds, counts.hits, counts.misses, counts.bytes_fetched)
