"""The scheduler: several requests at once on one device, a round at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from hotset.engine.engine import reusable
from hotset.engine.job import Event, Failed, Finished, Job
from hotset.engine.lane import Lane, LaneState, Totals, Work, choose_lane
from hotset.errors import BusyError, EngineStoppedError, HotsetError

if TYPE_CHECKING:
    from hotset.engine.engine import Engine

T = TypeVar("T")
log = logging.getLogger("hotset.scheduler")

# Chunks of other prompts that one is made to wait for at most, so that short ones may overtake it without starving it.
PATIENCE = 3
# Weight of the last request in the mean time of one, from which Retry-After is guessed.
MEMORY = 0.2


class Scheduler:
    """Runs jobs on an engine, `n_parallel` at once. `turn` and what it calls belong to one thread; the other public methods may be called from any.

    In a round every drawing job gets a token and one prompt gets on by a chunk. `reuse_drawn` lets a prompt take over keys and values
    of tokens that were drawn, whose last bits on a GPU differ from those of a prompt's.
    """

    def __init__(self, engine: Engine, *, n_parallel: int, max_waiting: int, reuse_drawn: bool = True) -> None:
        self.engine = engine
        self.n_parallel = n_parallel
        self.max_waiting = max_waiting
        self.reuse_drawn = reuse_drawn
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Job, float]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._stopped: str | None = None
        # While nothing comes, goes or is fed, a round is a step of the same jobs: looking for more would double its 20 us beside that step.
        self._is_steady = False
        self._drawing: list[tuple[Lane, Work]] = []
        self._counts = dict.fromkeys(Totals.__dataclass_fields__, 0)
        self._mean_s = 1.0
        self._clock = 0
        self._sequences = engine.sequences(n_parallel)
        self._lanes = [Lane(seq) for seq in range(n_parallel)]

    @property
    def n_ctx(self) -> int:
        """The context of every request."""
        return self._sequences.n_ctx

    # What any thread may call.

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, all or none; InputError for one that cannot be answered, BusyError where too many wait."""
        for job in jobs:
            self.engine.check(job.prompt, job.params, self.n_ctx)
        with self._changed:
            if self._stopped is not None:
                raise EngineStoppedError(self._stopped)
            n_idle = sum(lane.work is None for lane in self._lanes)
            if len(self._waiting) + len(jobs) > self.max_waiting + n_idle:
                raise BusyError(len(self._waiting), self._retry_after())
            now = time.perf_counter()
            self._waiting.extend((job, now) for job in jobs)
            self._notice()

    def cancel(self, job: Job) -> None:
        """End a job, queued or running, before the next step or chunk."""
        job.cancelled = True
        self.wake()

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` run on the engine's thread between two rounds, with nothing under way."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - whoever waits is told
                    future.set_exception(error)

        with self._changed:
            if self._stopped is not None:
                raise EngineStoppedError(self._stopped)
            self._calls.append(run)
            self._notice()
        return future

    def stop(self, reason: str) -> None:
        """Take nothing more, and fail what is there; `turn` must not be running or be called again."""
        with self._changed:
            self._stopped = reason
        self._fail_all(reason)

    def wake(self) -> None:
        """End `wait`."""
        with self._changed:
            self._notice()

    def _notice(self) -> None:
        self._is_steady = False
        self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Sleep until there is something to do, at most so long."""
        if self._drawing:
            return
        with self._changed:
            if self._is_steady and not self.n_running:
                self._changed.wait(seconds)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return sum(lane.work is not None for lane in self._lanes)

    @property
    def totals(self) -> Totals:
        return Totals(**self._counts)

    def lane_states(self) -> list[LaneState]:
        """What every lane is doing."""
        return [lane.state(len(self._sequences.tokens[lane.seq])) for lane in self._lanes]

    def _retry_after(self) -> int:
        return max(1, round(self._mean_s * (len(self._waiting) + 1) / self.n_parallel))

    # What the engine's thread calls.

    def turn(self) -> None:
        """One round."""
        if not self._is_steady:
            self._is_steady = True  # before the look: what comes during it is looked at in the next round
            self._look()
        if self._drawing:
            self._draw()

    def _look(self) -> None:
        """Take in what came, leave out what was cancelled, and get on with one prompt."""
        self._run_calls()
        self._drop_cancelled()
        self._admit()
        if (lane := self._next_prompt()) is not None:
            self._feed(lane)
        running = [(lane, lane.work) for lane in self._lanes if lane.work is not None]
        self._drawing = [(lane, work) for lane, work in running if work.begun and self._left(lane, work) == 0]
        if len(self._drawing) < len(running):
            self._is_steady = False

    def restart(self) -> None:
        """Begin again with empty sequences after an error; what was there fails."""
        self._fail_all("the engine failed while this request ran; send it again")
        self._sequences.reset()
        self._lanes = [Lane(seq) for seq in range(self.n_parallel)]
        self._drawing, self._is_steady = [], False

    def _fail_all(self, reason: str) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, deque()
            calls, self._calls = self._calls, deque()
        jobs = [job for job, _ in waiting]
        for lane in self._lanes:
            if lane.work is not None:
                jobs.append(lane.work.job)
                lane.work = None
        for job in jobs:
            self._tell_end(job, Failed(EngineStoppedError(reason)))
        for call in calls:
            call()

    def _run_calls(self) -> None:
        while self._calls:
            self._sequences.settle()
            self._calls.popleft()()

    def _drop_cancelled(self) -> None:
        with self._changed:
            kept = deque(entry for entry in self._waiting if not entry[0].cancelled)
            self._counts["cancelled"] += len(self._waiting) - len(kept)
            self._waiting = kept
        for lane in self._lanes:
            if lane.work is not None and lane.work.job.cancelled:
                self._counts["cancelled"] += 1
                self._leave(lane)

    def _admit(self) -> None:
        while self._waiting and (idle := [lane for lane in self._lanes if lane.work is None]):
            with self._changed:
                job, submitted = self._waiting.popleft()
            try:
                work = Work(job, self.engine, self.n_ctx, submitted)
            except HotsetError as error:  # of this job alone
                self._tell_end(job, Failed(error))
                continue
            work.awaited = self._worth_waiting(job.prompt)
            lane = choose_lane(idle, self._sequences.tokens, job.prompt)
            lane.work = work
            self._clock += 1
            lane.last_used = self._clock
            if work.limit == 0:
                self._end(lane, work.finish("length"))

    def _prompts(self) -> Iterable[tuple[Lane, Work]]:
        for lane in self._lanes:
            work = lane.work
            if work is None or (work.begun and self._left(lane, work) == 0):
                continue
            if work.begun or not self._is_coming(work):
                yield lane, work

    def _worth_waiting(self, prompt: Sequence[int]) -> tuple[Lane, Work, int] | None:
        """The prompt being computed that has most in common with this one, a chunk at least: waiting for it saves computing that twice."""
        busy = [(lane, lane.work) for lane in self._lanes if lane.work is not None]
        common = [(lane, work, reusable(work.job.prompt, prompt)) for lane, work in busy]
        best = max(common, key=lambda found: found[2], default=None)
        return best if best is not None and best[2] >= self._sequences.chunk else None

    def _is_coming(self, work: Work) -> bool:
        """Whether what a job waits for is still being computed."""
        if work.awaited is None:
            return False
        lane, other, n = work.awaited
        return lane.work is other and (not other.begun or len(self._sequences.tokens[lane.seq]) < n)

    def _left(self, lane: Lane, work: Work) -> int:
        return len(work.job.prompt) - (len(self._sequences.tokens[lane.seq]) - work.n_drawn)

    def _next_prompt(self) -> Lane | None:
        """The prompt with the least left to compute, unless one was passed over too often."""
        prompts = sorted(self._prompts(), key=lambda pair: pair[0].last_used)
        if not prompts:
            return None
        impatient = [pair for pair in prompts if pair[1].passed_over >= PATIENCE]
        chosen = impatient[0] if impatient else min(prompts, key=lambda pair: self._cost(*pair))
        for _, work in prompts:
            work.passed_over = 0 if work is chosen[1] else work.passed_over + 1
        return chosen[0]

    def _cost(self, lane: Lane, work: Work) -> int:
        return self._left(lane, work) if work.begun else len(work.job.prompt)

    def _feed(self, lane: Lane) -> None:
        work = lane.work
        assert work is not None
        prompt, sequences = work.job.prompt, self._sequences
        if not work.begun:
            self._begin(lane, work)
        at = len(sequences.tokens[lane.seq])
        try:
            sequences.feed(lane.seq, prompt[at : at + sequences.chunk], len(prompt))
        except HotsetError as error:
            self._end(lane, Failed(error))
            return
        lane.n_prompt = max(lane.n_prompt, len(sequences.tokens[lane.seq]))
        self._counts["chunks"] += 1
        self._counts["prompt_tokens"] += len(sequences.tokens[lane.seq]) - at

    def _begin(self, lane: Lane, work: Work) -> None:
        """Take over the longest beginning of the prompt that any lane holds, and set how to draw."""
        prompt, sequences = work.job.prompt, self._sequences
        reuse = {other.seq: reusable(self._usable(other), prompt) for other in self._lanes}
        source = max(reuse, key=lambda seq: (reuse[seq], seq == lane.seq))
        n = reuse[lane.seq]
        if reuse[source] > n:
            n = sequences.copy(source, lane.seq, reuse[source])
            lane.n_prompt = min(n, self._lanes[source].n_prompt)
        n = sequences.keep(lane.seq, n)
        lane.n_prompt = min(lane.n_prompt, n)
        sequences.start(lane.seq, work.drawing)
        work.n_cached, work.begun = n, True
        self._counts["cached_tokens"] += n

    def _usable(self, lane: Lane) -> Sequence[int]:
        held = self._sequences.tokens[lane.seq]
        return held if self.reuse_drawn else held[: lane.n_prompt]

    def _draw(self) -> None:
        drawing = self._drawing
        results = self._sequences.step([lane.seq for lane, _ in drawing])
        self._counts["steps"] += 1
        for (lane, work), drawn in zip(drawing, results, strict=True):
            if isinstance(drawn, HotsetError):
                self._end(lane, Failed(drawn))
                continue
            self._counts["completion_tokens"] += 1
            if (end := work.take(drawn)) is not None:
                self._end(lane, end)

    def _end(self, lane: Lane, event: Finished | Failed) -> None:
        work = lane.work
        assert work is not None
        self._leave(lane)
        self._tell_end(work.job, event)
        if isinstance(event, Finished):
            self._note(lane, event)

    def _note(self, lane: Lane, event: Finished) -> None:
        self.engine.note_heat()
        usage = event.usage
        self._mean_s += MEMORY * (usage.prompt_s + usage.decode_s - self._mean_s)
        reused = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused"
        if not usage.cached_tokens:
            reused += " (nothing held begins like it)"
        log.info("lane %d: %s, %d tokens, ended by %s", lane.seq, reused, usage.completion_tokens, event.reason)

    def _tell_end(self, job: Job, event: Event) -> None:
        self._counts["finished" if isinstance(event, Finished) else "failed"] += 1
        job.tell(event)

    def _leave(self, lane: Lane) -> None:
        lane.work = None
        self._is_steady = False
        self._clock += 1
        lane.last_used = self._clock
