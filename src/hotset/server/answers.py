"""Answers on their way from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from hotset.engine.job import Event, Failed, Finished, Job, Token

if TYPE_CHECKING:
    from hotset.engine.scheduler import Scheduler

Told = tuple[int, Token | Finished]

# A stream is written at most so often, which still reads as a flow: each time the loop's thread takes the interpreter from the
# engine's in the middle of a step, which costs a small model's steps half a millisecond, however many tokens go on. First tokens and ends
# never wait.
PACE_S = 1 / 30


class Answers:
    """Several answers of an engine; `close` must be called whatever happens. All but what `teller` gives belongs to the loop's thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.jobs: list[Job] = []
        self.tokenizer = scheduler.engine.tokenizer
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._told: deque[tuple[int, Event]] = deque()
        self._n_finished = 0
        self._ready = asyncio.Event()
        # Whether the engine's thread is to wake the loop for a token; else the loop will look by itself.
        self._sleeps = True
        self._look_again: asyncio.TimerHandle | None = None

    def teller(self, index: int) -> Callable[[Event], None]:
        """What the engine's thread calls with the events of answer `index`."""

        def tell(event: Event) -> None:
            self._told.append((index, event))
            if self._sleeps or not isinstance(event, Token):
                self._sleeps = False
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                    self._loop.call_soon_threadsafe(self._ready.set)

        return tell

    def close(self) -> None:
        """End those that still run."""
        if self._look_again is not None:
            self._look_again.cancel()
        for job in self.jobs:
            self._scheduler.cancel(job)

    async def take(self) -> list[Told]:
        """Wait for more -> what came, each with its answer's index; nothing when all are finished. A HotsetError where one failed."""
        taken: list[Told] = []
        while not taken and self._n_finished < len(self.jobs):
            await self._ready.wait()
            self._ready.clear()
            taken = self._drain()
            self._pause()
        return taken

    async def events(self) -> AsyncIterator[Told]:
        """The same one by one."""
        while taken := await self.take():
            for told in taken:
                yield told

    def _drain(self) -> list[Told]:
        taken: list[Told] = []
        while self._told:
            index, event = self._told.popleft()
            if not isinstance(event, Failed):
                self._n_finished += isinstance(event, Finished)
                taken.append((index, event))
            elif not taken:
                raise event.error
            else:  # what came before it is told first
                self._told.appendleft((index, event))
                self._ready.set()
                break
        return taken

    def _pause(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
        self._look_again = self._loop.call_later(PACE_S, self._look)

    def _look(self) -> None:
        # In this order: a token that is told meanwhile is seen here, or its thread sees that the loop sleeps.
        self._sleeps = True
        if self._told:
            self._sleeps = False
            self._ready.set()
