"""A lane: one of the sequences that the scheduler keeps, and the job that it works on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.engine.engine import TextOut, reusable
from hotset.engine.job import Finished, Job, Token, Usage, logprob
from hotset.engine.runner import Drawing, Drawn
from hotset.text.stream import stop_token_ids

if TYPE_CHECKING:
    from hotset.engine.engine import Engine, FinishReason


@dataclass(frozen=True)
class LaneState:
    """What a lane is doing: nothing, feeding a prompt of which `n_fed` tokens are computed, or drawing."""

    seq: int
    n_held: int
    n_prompt: int
    n_drawn: int
    is_busy: bool
    is_prompt: bool


@dataclass(frozen=True)
class Totals:
    """Counts since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    chunks: int = 0
    steps: int = 0


class Work:
    """A job on its lane: how far its prompt is fed, what was drawn, and when."""

    def __init__(self, job: Job, engine: Engine, n_ctx: int, submitted: float) -> None:
        self.job = job
        self.n_cached = 0
        self.begun = False
        # Another lane, its work, and how many tokens of it will be worth waiting for.
        self.awaited: tuple[Lane, Work, int] | None = None
        self.passed_over = 0
        self.n_drawn = 0
        params = job.params
        ends = engine.end_ids | stop_token_ids(engine.tokenizer, params.stop)
        self.drawing = Drawing(params, job.seed, ends, job.mask, wants_logits=job.n_top is not None)
        room = n_ctx - len(job.prompt)
        self.limit = room if params.max_tokens is None else min(room, params.max_tokens)
        self._text = TextOut(engine.tokenizer, params.stop, after=job.prompt[-1], special=job.special)
        self._submitted = submitted
        self._started = self._first = self._last = time.perf_counter()

    def take(self, drawn: Drawn) -> Finished | None:
        """Tell of a drawn token; what there is to say when it was the last one."""
        job, n_top = self.job, self.job.n_top
        self.n_drawn += 1
        self._last = time.perf_counter()
        if self.n_drawn == 1:
            self._first = self._last
        text = "" if drawn.is_end else self._text.push(drawn.token)
        found = None if n_top is None or drawn.logits is None else logprob(drawn.logits, drawn.token, n_top)
        job.tell(Token(drawn.token, text, drawn.is_end, found))
        if drawn.is_end or self._text.stopped:
            return self.finish("stop")
        return self.finish("length") if self.n_drawn == self.limit else None

    def finish(self, reason: FinishReason) -> Finished:
        """The job's last event."""
        text = "" if self._text.stopped else self._text.flush()
        reason = "stop" if self._text.stopped else reason
        return Finished(reason, text, self._text.stop, self.usage)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.job.prompt),
            cached_tokens=self.n_cached,
            completion_tokens=self.n_drawn,
            queued_s=self._started - self._submitted,
            prompt_s=self._first - self._started,
            decode_s=self._last - self._first,
        )


class Lane:
    """One sequence. Of the tokens it holds, the first `n_prompt` were computed as a prompt, the others drawn."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.work: Work | None = None
        self.n_prompt = 0
        self.last_used = 0

    def state(self, n_held: int) -> LaneState:
        """What the lane is doing, while its sequence holds so many tokens."""
        work = self.work
        n_prompt = len(work.job.prompt) if work else self.n_prompt
        return LaneState(self.seq, n_held, n_prompt, work.n_drawn if work else 0, work is not None, n_held < n_prompt)


def choose_lane(lanes: Sequence[Lane], held: Sequence[Sequence[int]], prompt: Sequence[int]) -> Lane:
    """The idle lane for a prompt: one of which it takes up at least half, else the one that was not used for longest.

    So a short common beginning does not throw away another conversation; it is copied instead.
    """
    best = max(lanes, key=lambda lane: reusable(held[lane.seq], prompt))
    n = reusable(held[best.seq], prompt)
    return best if 0 < len(held[best.seq]) <= 2 * n else min(lanes, key=lambda lane: lane.last_used)
