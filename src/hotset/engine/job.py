"""A request to generate, and what is told of it as it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotset.engine.engine import FinishReason

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.runner import TokenMask
    from hotset.errors import HotsetError


@dataclass(frozen=True)
class LogProb:
    """Natural logarithm of a token's probability before any bias, penalty or cut; `top` are the most probable tokens with theirs, best first."""

    value: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Token:
    """A token that was drawn, and the text that it completed; the token that ends a text completes none."""

    token: int
    text: str
    is_end: bool
    logprob: LogProb | None


@dataclass(frozen=True)
class Usage:
    """What a request took; `cached_tokens` of the prompt were held already. Times in seconds; the first token comes with the prompt."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queued_s: float
    prompt_s: float
    decode_s: float


@dataclass(frozen=True)
class Finished:
    """The end of a request; `text` was held back until it was certain that no stop string follows, `stop` is the one that was met."""

    reason: FinishReason
    text: str
    stop: str | None
    usage: Usage


@dataclass(frozen=True)
class Failed:
    """A request that ended without an answer."""

    error: HotsetError


Event = Token | Finished | Failed


@dataclass(eq=False)
class Job:
    """A request. `tell` is called on the engine's thread with every event and must return at once; the last one is Finished or Failed.

    `n_top` asks for logarithms of probabilities, of the token drawn and so many others; `special` keeps control tokens in the text.
    `cancelled` ends it without another event.
    """

    prompt: list[int]
    params: SamplingParams
    seed: int
    tell: Callable[[Event], None]
    n_top: int | None = None
    mask: TokenMask | None = None
    special: bool = False
    cancelled: bool = False


def logprob(logits: NDArray[np.float32], token: int, n_top: int) -> LogProb:
    """Log-softmax of logits float32 [n_vocab] at `token` and at the `n_top` largest, ties to the lowest id; NaN counts as impossible."""
    x = np.nan_to_num(logits.astype(np.float64), nan=-np.inf, neginf=-np.inf)
    largest = x.max()
    if largest == -np.inf:
        return LogProb(-np.inf, ())
    values = x - largest - np.log(np.exp(x - largest).sum())
    best = np.argsort(-values, kind="stable")[:n_top]
    return LogProb(float(values[token]), tuple((int(t), float(values[t])) for t in best))
