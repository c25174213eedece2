"""The engine: a loaded model that tokenises, generates and gives logits."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hotset.config import SamplingParams
from hotset.engine.memory import checked_ctx
from hotset.engine.runner import MODES, Mode, Runner, Sequences, Session, TokenMask
from hotset.engine.stats import Stats
from hotset.errors import ContextError, InputError
from hotset.experts.slots import CacheSize
from hotset.text.stream import Detokenizer, StopStrings, stop_token_ids

if TYPE_CHECKING:
    from hotset.engine.memory import MemoryPlan
    from hotset.engine.warm_start import WarmStart
    from hotset.model.config import ModelConfig
    from hotset.text.chat import ChatTemplate
    from hotset.text.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


class Piece(str):
    """Text that one token added (it may be empty while a character is incomplete); `token` is its id, None for text that was held back."""

    __slots__ = ("token",)
    token: int | None

    def __new__(cls, text: str, token: int | None) -> Self:
        piece = super().__new__(cls, text)
        piece.token = token
        return piece


@dataclass(frozen=True)
class Generation:
    """What was generated: `tokens` without the prompt, end token included; times in seconds; `reused_tokens` of the prompt were held already."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    prompt_tokens: int
    reused_tokens: int
    prompt_s: float
    decode_s: float

    @property
    def prompt_tokens_per_s(self) -> float:
        return (self.prompt_tokens - self.reused_tokens) / self.prompt_s if self.prompt_s else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Decode speed: the first token comes with the prompt, so it is not counted."""
        n = len(self.tokens) - 1
        return n / self.decode_s if n > 0 and self.decode_s else 0.0


class Stream(Iterator[Piece]):
    """Pieces of text as they are generated; `result` is there when it is exhausted or closed."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        prompt: list[int],
        params: SamplingParams,
        mask: TokenMask | None = None,
    ) -> None:
        self.seed = params.seed if params.seed is not None else secrets.randbits(64)
        self._engine = engine
        self._session = session
        self._prompt = prompt
        self._params = params
        self._mask = mask
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._finish: FinishReason = "length"
        self._times = [0.0, 0.0]
        self._reused = 0
        self._pieces = self._run()

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Stop generating; what came so far is the result."""
        self._pieces.close()
        self._engine.note_heat()

    @property
    def result(self) -> Generation:
        """The generation so far."""
        return Generation(
            text="".join(self._text),
            tokens=tuple(self._tokens),
            finish_reason=self._finish,
            seed=self.seed,
            prompt_tokens=len(self._prompt),
            reused_tokens=self._reused,
            prompt_s=self._times[0],
            decode_s=self._times[1],
        )

    def _run(self) -> Generator[Piece, None, None]:
        session, params = self._session, self._params
        end_ids = self._engine.end_ids | stop_token_ids(self._engine.tokenizer, params.stop)
        session.start(params, self.seed, end_ids, self._mask)
        self._reused = reusable(session.tokens, self._prompt)
        session.keep(self._reused)
        began = time.perf_counter()
        session.feed(self._prompt[self._reused :])
        self._times[0] = time.perf_counter() - began
        text = TextOut(self._engine.tokenizer, params.stop, after=self._prompt[-1])
        room = session.n_ctx - len(self._prompt)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        for n in range(limit):
            drawn = session.next()
            if n == 0:  # drawn from the prompt's logits
                self._times[0] = time.perf_counter() - began
                began = time.perf_counter()
            self._times[1] = time.perf_counter() - began
            self._tokens.append(drawn.token)
            if drawn.is_end:
                self._finish = "stop"
                break
            piece = text.push(drawn.token)
            yield self._emit(piece, drawn.token)
            if text.stopped:
                self._finish = "stop"
                self._engine.note_heat()
                return
        if rest := text.flush():
            yield self._emit(rest, None)
        self._engine.note_heat()

    def _emit(self, text: str, token: int | None) -> Piece:
        self._text.append(text)
        return Piece(text, token)


class TextOut:
    """Token ids -> text to show: whole characters only, nothing of a stop string, control tokens only if `special`; `after` is the token before."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, after: int, special: bool = False) -> None:
        self._detokenizer = Detokenizer(tokenizer, special=special, continues=not tokenizer.begins_text(after))
        self._stops = StopStrings(stops)
        self.stopped = False

    @property
    def stop(self) -> str | None:
        """The stop string that was met."""
        return self._stops.met

    def push(self, token: int) -> str:
        """The text that a token lets out."""
        text, self.stopped = self._stops.push(self._detokenizer.push(token))
        return text

    def flush(self) -> str:
        """The text that was held back, as there is no more."""
        text, self.stopped = self._stops.push(self._detokenizer.flush())
        return text if self.stopped else text + self._stops.flush()


def reusable(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens of `prompt` a session holding `held` has already; the last one is always computed again, for its logits."""
    n = 0
    for a, b in zip(held, prompt[:-1], strict=False):
        if a != b:
            break
        n += 1
    return n


class Engine:
    """A loaded model; made by `hotset.load`."""

    def __init__(
        self,
        runner: Runner,
        config: ModelConfig,
        tokenizer: Tokenizer,
        *,
        n_ctx: int,
        template: ChatTemplate | None,
        memory: MemoryPlan,
        notes: Sequence[str] = (),
        warm_start: WarmStart | None = None,
    ) -> None:
        self.runner = runner
        self.config = config
        self.tokenizer = tokenizer
        self.n_ctx = n_ctx
        self.template = template
        self.memory = memory
        self.notes = tuple(notes)
        self.warm_start = warm_start

    def use_template(self, source: str) -> None:
        """Take a chat template (Jinja text) in place of the model's own."""
        from hotset.text.chat import ChatTemplate

        self.template = ChatTemplate.for_tokenizer(source, self.tokenizer)

    @property
    def device(self) -> str:
        """The name of the device, "cpu" or "cuda"."""
        return self.runner.device

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        return self.tokenizer.end_ids

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Text -> ids. `add_special` adds what the model wants around a text; `parse_special` reads control tokens written in it."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Ids -> text; bytes that are no UTF-8 become U+FFFD."""
        return self.tokenizer.decode(self.checked(ids))

    def checked(self, ids: Sequence[int] | NDArray[Any]) -> list[int]:
        """The ids as a list; InputError where one is no integer from 0 to n_vocab - 1."""
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, (int, np.integer)) or not 0 <= i < self.config.n_vocab:
                raise InputError(
                    f"token id {i!r} is not one of this model's; ids go from 0 to {self.config.n_vocab - 1}"
                )
        return [int(i) for i in ids]

    def session(self, n_ctx: int | None = None) -> Session:
        """An empty sequence to generate on; one that is kept reuses what a later prompt has in common with it."""
        return self.runner.session(self.n_ctx if n_ctx is None else checked_ctx(n_ctx))

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        session: Session | None = None,
        mask: TokenMask | None = None,
        **sampling: Any,
    ) -> Stream:
        """Generate piece by piece; `sampling` are the fields of SamplingParams, the prompt is text or token ids.

        `mask` says before every token which ones are allowed: see `runner.TokenMask`.
        """
        params = SamplingParams(**sampling)
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self.checked(prompt)
        session = session or self.session()
        self.check(ids, params, session.n_ctx)
        return Stream(self, session, ids, params, mask)

    def check(self, prompt: Sequence[int], params: SamplingParams, n_ctx: int) -> None:
        """InputError where a prompt cannot be answered within `n_ctx` tokens: it is empty, too long, or its settings name no token of this model."""
        if not prompt:
            raise InputError("the prompt is empty and this model has no begin token; give at least one token")
        if len(prompt) >= n_ctx:
            raise ContextError(len(prompt), n_ctx)
        if bad := [t for t in params.logit_bias if t >= self.config.n_vocab]:
            raise InputError(f"logit_bias holds the token id {bad[0]}; ids go from 0 to {self.config.n_vocab - 1}")

    def sequences(self, n_seqs: int) -> Sequences:
        """Empty sequences that step together."""
        return self.runner.sequences(n_seqs, self.n_ctx)

    def resize_cache(self, size: str) -> None:
        """Give the expert cache another size ("6GiB", "25%", "16slots", "auto", "off") while nothing generates; it starts empty."""
        plan = self.memory.resized(CacheSize.parse(size), self.runner.shape)
        self.runner.resize_cache(plan.n_slots)
        self.memory = plan

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        session: Session | None = None,
        mask: TokenMask | None = None,
        **sampling: Any,
    ) -> Generation:
        """Generate to the end; arguments as for `stream`."""
        stream = self.stream(prompt, session=session, mask=mask, **sampling)
        for _ in stream:
            pass
        return stream.result

    def logits(
        self,
        ids: Sequence[int],
        *,
        mode: Mode = "fast",
        stepwise: bool = False,
        wanted: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Logits float32 [len(ids), n_vocab] of every position (or of those in `wanted`) of a sequence that begins with `ids`.

        `mode` is "fast" (int8 activations, float16 keys and values) or "reference" (all float32); `stepwise` feeds token by token.
        """
        if mode not in MODES:
            raise InputError(f"mode {mode!r} is not one of {', '.join(MODES)}")
        tokens = self.checked(ids)
        positions = range(len(tokens)) if wanted is None else wanted
        if bad := [i for i in positions if not 0 <= i < len(tokens)]:
            raise InputError(
                f"wanted holds position {bad[0]}; the {len(tokens)} tokens have positions 0 to {len(tokens) - 1}"
            )
        if not tokens:
            return np.empty((0, self.config.n_vocab), np.float32)
        return self.runner.logits(tokens, positions, mode, stepwise=stepwise)

    def note_heat(self) -> None:
        """Let the next warm start know which experts the last answer used; nothing without `load(warm_start=True)`."""
        if self.warm_start is not None:
            self.warm_start.note(self.runner.cache)

    def stats(self) -> Stats:
        """What the expert cache did since loading or the last reset."""
        return self.runner.stats()

    def reset_stats(self) -> None:
        """Count from zero; what is resident stays."""
        self.runner.reset_stats()
