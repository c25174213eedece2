"""What the engine asks of a device: logits of given tokens, and sessions that generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.stats import Stats
    from hotset.engine.warm_start import WarmCache
    from hotset.errors import HotsetError
    from hotset.experts.expert_map import ExpertMap
    from hotset.experts.policy import Policy
    from hotset.experts.slots import CacheShape
    from hotset.kernels.token_mask import Words

Mode = Literal["fast", "reference"]
MODES: tuple[Mode, ...] = ("fast", "reference")
# From the tokens drawn since the prompt to those allowed next, as bits (kernels/token_mask.py); None allows all. It has to allow an end
# token where the text may end.
TokenMask = Callable[[Sequence[int]], "Words | None"]


@dataclass(frozen=True, eq=False)
class Drawing:
    """How a sequence's tokens are drawn; `wants_logits` asks for the logits that each was drawn from."""

    params: SamplingParams
    seed: int
    end_ids: frozenset[int]
    mask: TokenMask | None = None
    wants_logits: bool = False


@dataclass(frozen=True, eq=False)
class Drawn:
    """A token that was drawn, whether it is one of the end tokens, and where asked for its logits float32 [n_vocab] before mask, bias and penalties."""

    token: int
    is_end: bool
    logits: NDArray[np.float32] | None = None


class Session(Protocol):
    """One sequence with its keys and values. `tokens` are those it holds, the last drawn one included."""

    tokens: list[int]
    n_ctx: int

    def start(self, params: SamplingParams, seed: int, end_ids: frozenset[int], mask: TokenMask | None = None) -> None:
        """Set how the following tokens are drawn. With a `mask` each step waits for the host to have said what is allowed."""

    def keep(self, n: int) -> None:
        """Forget all but the first `n` tokens."""

    def feed(self, tokens: Sequence[int]) -> None:
        """Append tokens of a prompt."""

    def begin(self, token: int, *, trace_at: int = 0) -> None:
        """Hold one token and nothing else, which the first step stores: there is no prompt. It is token `trace_at` of a routing trace."""

    def next(self) -> Drawn:
        """Draw the next token and append it."""


class Sequences(Protocol):
    """Several sequences in fast mode with their keys and values, which step together; what one of them draws never depends on the others.

    `tokens[s]` are those that sequence s holds, the last drawn one included; `chunk` is how many tokens of a prompt are computed at once.
    """

    n_ctx: int
    chunk: int
    tokens: list[list[int]]

    def start(self, seq: int, drawing: Drawing) -> None:
        """Set how the following tokens of a sequence are drawn."""

    def keep(self, seq: int, n: int) -> int:
        """Forget all but the first `n` tokens of a sequence, or fewer where its state cannot be taken back to there; returns how many are left."""

    def copy(self, source: int, target: int, n: int) -> int:
        """Make `target` hold the first `n` tokens of `source`, or as many of them as can be had; returns how many."""

    def feed(self, seq: int, tokens: Sequence[int], n_prompt: int) -> None:
        """Append a chunk of a prompt of `n_prompt` tokens in all."""

    def step(self, seqs: Sequence[int]) -> list[Drawn | HotsetError]:
        """Draw the next token of each of `seqs`, whose prompts are fed, and append it; an error concerns that sequence alone."""

    def settle(self) -> None:
        """Wait for all that is under way, so that caches may be changed."""

    def reset(self) -> None:
        """Hold nothing, whatever happened before."""


class Runner(Protocol):
    """A model on a device."""

    device: str

    @property
    def shape(self) -> CacheShape:
        """What its expert cache is made for."""

    def beside(
        self, n_slots: Sequence[int], policy: Policy, *, threads: int | None = None, bus_factor: int = 1
    ) -> Runner:
        """Another runner on the same weights and experts with an expert cache of its own; only one of them may be at work at a time.

        `threads` are the CPU's (None: as here); a GPU fetches every span `bus_factor` times, which imitates a bus so many times slower.
        InputError where nothing is fetched.
        """

    @property
    def cache(self) -> WarmCache:
        """The expert cache."""

    def logits(
        self, tokens: Sequence[int], wanted: Sequence[int], mode: Mode, *, stepwise: bool
    ) -> NDArray[np.float32]:
        """Logits float32 [len(wanted), n_vocab] of those positions of a fresh sequence; `stepwise` feeds token by token."""

    def session(self, n_ctx: int) -> Session:
        """An empty sequence in fast mode."""

    def sequences(self, n_seqs: int, n_ctx: int) -> Sequences:
        """Empty sequences that step together."""

    def resize_cache(self, n_slots: Sequence[int]) -> None:
        """Give each layer so many slots, all empty, while no step is under way; counts go on."""

    def expert_map(self) -> ExpertMap:
        """What is resident and how warm it is."""

    def set_routing(self, picks: NDArray[np.integer[Any]] | None) -> None:
        """Sessions from now on take their decode steps' picks from a trace [tokens, layers, k] of the model's counts, None: from the router."""

    def stats(self) -> Stats: ...

    def reset_stats(self) -> None: ...

    def reset_cache(self) -> None:
        """As just loaded: an empty cache and nothing counted."""
