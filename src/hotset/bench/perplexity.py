"""Perplexity as llama.cpp counts it: windows of a text, the second half of each scored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hotset.engine.runner import MODES, Mode
from hotset.errors import InputError

if TYPE_CHECKING:
    from hotset.engine.engine import Engine

# Rows of logits turned to float64 at once: 16 rows of 152k columns are 19 MB.
ROWS = 16


@dataclass(frozen=True)
class Scoring:
    """What to score: windows of `window` tokens, the first `chunks` of them (None: all), in one of the engine's modes."""

    window: int = 512
    chunks: int | None = 40
    mode: str = "fast"

    def __post_init__(self) -> None:
        if self.window < 4:
            raise InputError(f"a window (--ctx-size) of {self.window} tokens is too small; give at least 4")
        if self.chunks is not None and self.chunks < 1:
            raise InputError(f"--chunks {self.chunks}: give at least 1, or -1 for the whole text")
        if self.mode not in MODES:
            raise InputError(f"--mode {self.mode!r} is not one of {', '.join(MODES)}")

    @property
    def positions(self) -> range:
        """Positions of a window whose next token is scored: those with at least half a window before them."""
        return range(self.window // 2, self.window - 1)


@dataclass(frozen=True)
class Score:
    """The perplexity of `tokens` tokens, with one standard error."""

    perplexity: float
    uncertainty: float
    tokens: int
    chunks: int
    of_chunks: int
    window: int
    mode: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return asdict(self)


def score(engine: Engine, text: str, scoring: Scoring) -> Iterator[Score]:
    """The running score after each window."""
    ids = engine.tokenize(text, add_special=False)
    c = scoring.window
    n = len(ids) // c if scoring.chunks is None else min(scoring.chunks, len(ids) // c)
    if n == 0:
        raise InputError(
            f"the text has {len(ids):,} tokens, less than one window of {c:,}; give a longer text or a smaller --ctx-size"
        )
    losses: list[NDArray[np.float64]] = []
    for i in range(n):
        window = ids[i * c : (i + 1) * c]
        logits = engine.logits(window, mode=cast("Mode", scoring.mode), wanted=scoring.positions)
        losses.append(negative_log_likelihoods(logits, [window[p + 1] for p in scoring.positions]))
        yield total(np.concatenate(losses), i + 1, n, scoring)


def negative_log_likelihoods(logits: NDArray[np.float32], targets: list[int]) -> NDArray[np.float64]:
    """-log softmax(logits[i])[targets[i]] in float64."""
    out = np.empty(len(targets), np.float64)
    for start in range(0, len(targets), ROWS):
        rows = logits[start : start + ROWS].astype(np.float64)
        rows -= rows.max(1, keepdims=True)
        own = rows[np.arange(len(rows)), targets[start : start + ROWS]]
        out[start : start + ROWS] = np.log(np.exp(rows).sum(1)) - own
    return out


def total(losses: NDArray[np.float64], chunks: int, of_chunks: int, scoring: Scoring) -> Score:
    mean = float(losses.mean())
    perplexity = math.exp(mean) if mean < 700 else math.inf
    error = float(losses.std(ddof=1)) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
    return Score(perplexity, perplexity * error, len(losses), chunks, of_chunks, scoring.window, scoring.mode)
