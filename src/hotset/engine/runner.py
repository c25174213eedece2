"""What the engine asks of a device: logits of given tokens, and sessions that generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.record import RecordingCache
    from hotset.engine.stats import Stats

Mode = Literal["fast", "reference"]
MODES: tuple[Mode, ...] = ("fast", "reference")


@dataclass(frozen=True)
class Drawn:
    """A token that was drawn, and whether it is one of the end tokens."""

    token: int
    is_end: bool


class Session(Protocol):
    """One sequence with its keys and values. `tokens` are those it holds, the last drawn one included."""

    tokens: list[int]
    n_ctx: int

    def start(self, params: SamplingParams, seed: int, end_ids: frozenset[int]) -> None:
        """Set how the following tokens are drawn."""

    def keep(self, n: int) -> None:
        """Forget all but the first `n` tokens."""

    def feed(self, tokens: Sequence[int]) -> None:
        """Append tokens of a prompt."""

    def next(self) -> Drawn:
        """Draw the next token and append it."""


class Runner(Protocol):
    """A model on a device."""

    device: str

    @property
    def cache(self) -> RecordingCache:
        """The expert cache."""

    def logits(
        self, tokens: Sequence[int], wanted: Sequence[int], mode: Mode, *, stepwise: bool
    ) -> NDArray[np.float32]:
        """Logits float32 [len(wanted), n_vocab] of those positions of a fresh sequence; `stepwise` feeds token by token."""

    def session(self, n_ctx: int) -> Session:
        """An empty sequence in fast mode."""

    def stats(self) -> Stats: ...

    def reset_stats(self) -> None: ...

    def reset_cache(self) -> None:
        """As just loaded: an empty cache and nothing counted."""
