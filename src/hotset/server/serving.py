"""What the server's routes share: the engine's thread, the settings, and the way from a request to the events of its answers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import Depends, Request

from hotset.engine.job import Job
from hotset.server.answers import Answers

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.engine import Engine
    from hotset.engine.runner import TokenMask
    from hotset.engine.scheduler import Scheduler
    from hotset.engine.worker import Worker
    from hotset.text.chat import ChatTemplate

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How the server was started."""

    model: str
    n_parallel: int
    max_waiting: int


@dataclass(frozen=True)
class Wanted:
    """One answer asked for: its prompt, how to draw it, and what goes with it."""

    prompt: list[int]
    params: SamplingParams
    n_top: int | None = None
    mask: Callable[[], TokenMask] | None = None
    special: bool = False


class Serving:
    """The state of a server, one for each app."""

    def __init__(self, worker: Worker, settings: Settings) -> None:
        self.worker = worker
        self.settings = settings
        self.created = int(time.time())

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; EngineStoppedError (503) while there is none."""
        return self.worker.scheduler

    @property
    def engine(self) -> Engine:
        return self.scheduler.engine

    @property
    def template(self) -> ChatTemplate | None:
        return self.engine.template

    async def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, run on the engine's thread between two rounds."""
        return await asyncio.wrap_future(self.scheduler.call(work))

    def answers(self, wanted: Sequence[Wanted], n: int = 1) -> Answers:
        """Begin `n` answers to each; answer i of a prompt has the seed + i. Errors of a request are raised here, before any work."""
        scheduler = self.scheduler
        answers = Answers(scheduler)
        jobs = []
        for i, one in enumerate(w for w in wanted for _ in range(n)):
            seed = secrets.randbits(64) if one.params.seed is None else (one.params.seed + i % n) % (1 << 64)
            params = replace(one.params, seed=seed)
            mask = one.mask() if one.mask is not None else None
            jobs.append(Job(one.prompt, params, seed, answers.teller(i), one.n_top, mask, one.special))
        scheduler.submit(jobs)
        answers.jobs = jobs
        return answers


def serving_of(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


ServingOf = Annotated[Serving, Depends(serving_of)]
