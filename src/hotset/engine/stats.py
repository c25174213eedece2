"""What a run did: the expert cache's counts, prompts and decoding apart, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hotset.experts.stats import rate

if TYPE_CHECKING:
    from hotset.experts.stats import CacheStats, Prefetched

Phase = Literal["prompt", "decode"]
DENSE = "the model has no experts"


@dataclass(frozen=True)
class LayerStats:
    """One layer: distinct experts found and missed; `overflows` are misses that found no slot; `bytes_fetched` = misses * span bytes."""

    hits: int
    misses: int
    overflows: int
    bytes_fetched: int
    n_slots: int
    n_experts: int

    @property
    def hit_rate(self) -> float | None:
        return rate(self.hits, self.misses)


@dataclass(frozen=True)
class PhaseStats:
    """All layers over the tokens of one phase."""

    tokens: int
    hits: int
    misses: int
    overflows: int
    bytes_fetched: int
    hit_rate: float | None
    layers: tuple[LayerStats, ...]


@dataclass(frozen=True)
class Stats:
    """The expert cache since the last reset; the totals are of decoding, `prompt` has the prompts' own.

    `active` says whether the cache moves experts to a GPU; where it does not, `reason` says why and the counts are what it would
    have done. `fetch_ms` is the time the GPU spent bringing misses, prompts included, None where nothing is fetched. `unused_steps`
    ran ahead of an end that only the host could see (a stop string); they are counted in everything else. `prefetched` are the bytes that
    came before their layer had picked, prompts included, None where nothing comes ahead.
    """

    active: bool
    reason: str
    policy: str
    tokens: int
    hits: int
    misses: int
    overflows: int
    bytes_fetched: int
    hit_rate: float | None
    fetch_ms: float | None
    unused_steps: int
    prefetched: Prefetched | None
    layers: tuple[LayerStats, ...]
    prompt: PhaseStats

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return asdict(self)

    def __getitem__(self, name: str) -> Any:
        """A field by its name: stats["hits"]."""
        return self.as_dict()[name]


class CountedCache(Protocol):
    """An expert cache that counts: HostCache or ExpertCache."""

    def stats(self) -> CacheStats: ...


class Meter:
    """Sorts a cache's counts into phases by reading them where a phase begins and ends."""

    def __init__(self, cache: CountedCache) -> None:
        self._cache = cache
        self.reset()

    def reset(self) -> None:
        """Start from zero."""
        n_layers = len(self._cache.stats().hits)
        self._counts: dict[Phase, Any] = {phase: np.zeros((3, n_layers), np.int64) for phase in ("prompt", "decode")}
        self._tokens: dict[Phase, int] = {"prompt": 0, "decode": 0}
        self._seen = self._read()

    def _read(self) -> Any:
        stats = self._cache.stats()
        return np.array([stats.hits, stats.misses, stats.overflows], np.int64)

    def count(self, phase: Phase, tokens: int) -> None:
        """Book everything since the last call under `phase`."""
        now = self._read()
        self._counts[phase] += now - self._seen
        self._tokens[phase] += tokens
        self._seen = now

    def add_prompt(self, in_place: NDArray[np.int64], streamed: NDArray[np.int64]) -> None:
        """Book a chunk of a prompt that went past the cache: per layer, resident experts used and experts streamed in."""
        self._counts["prompt"][0] += in_place
        self._counts["prompt"][1] += streamed

    @contextmanager
    def phase(self, phase: Phase, tokens: int) -> Iterator[None]:
        """Book what happens inside under `phase`; what came before was decoding."""
        self.count("decode", 0)
        yield
        self.count(phase, tokens)

    def tokens(self, n: int) -> None:
        """Note `n` decoded tokens; their counts are read later, so that decoding never waits for them."""
        self._tokens["decode"] += n

    def result(self, phase: Phase) -> PhaseStats:
        """The counts of a phase so far."""
        self.count("decode", 0)
        stats = self._cache.stats()
        columns = zip(*self._counts[phase].tolist(), stats.span_bytes, stats.n_slots, stats.n_experts, strict=True)
        layers = tuple(LayerStats(h, m, o, m * span, slots, experts) for h, m, o, span, slots, experts in columns)
        hits, misses = sum(x.hits for x in layers), sum(x.misses for x in layers)
        return PhaseStats(
            tokens=self._tokens[phase],
            hits=hits,
            misses=misses,
            overflows=sum(x.overflows for x in layers),
            bytes_fetched=sum(x.bytes_fetched for x in layers),
            hit_rate=rate(hits, misses),
            layers=layers,
        )

    def stats(
        self,
        *,
        active: bool,
        reason: str,
        fetch_ms: float | None,
        unused_steps: int = 0,
        prefetched: Prefetched | None = None,
    ) -> Stats:
        decode = self.result("decode")
        shared = {name: getattr(decode, name) for name in PhaseStats.__dataclass_fields__}
        return Stats(
            active=active,
            reason=reason,
            policy=self._cache.stats().policy,
            fetch_ms=fetch_ms,
            unused_steps=unused_steps,
            prefetched=prefetched,
            prompt=self.result("prompt"),
            **shared,
        )
