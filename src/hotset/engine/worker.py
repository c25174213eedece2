"""The engine's thread: it loads the model, runs the scheduler, and begins again once if the engine fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from hotset.engine.scheduler import Scheduler
from hotset.errors import EngineStoppedError

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.engine.loading import Progress

State = Literal["loading", "ready", "restarting", "failed", "stopped"]
log = logging.getLogger("hotset.worker")

# How long an idle thread sleeps before it looks again, so that a lost wake-up would not be forever.
LOOK_AGAIN_S = 1.0
# An engine that fails once more is not trusted again.
MAX_RESTARTS = 1


class Worker:
    """Owns the device. `open_engine` is called with a function to tell its progress, `make_scheduler` with the engine, both on the thread.

    `on_end` is called on the thread when it ends for good.
    """

    def __init__(
        self,
        open_engine: Callable[[Progress], Engine],
        make_scheduler: Callable[[Engine], Scheduler],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_engine = open_engine
        self._make_scheduler = make_scheduler
        self._on_end = on_end
        self._scheduler: Scheduler | None = None
        self._stop_asked = False
        self.state: State = "loading"
        self.progress: tuple[str, int, int] = ("starting", 0, 1)
        self.n_restarts = 0
        self.error: BaseException | None = None
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hotset-engine", daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; EngineStoppedError while there is none that works."""
        if self._scheduler is None or self.state != "ready":
            raise EngineStoppedError(self.problem)
        return self._scheduler

    @property
    def problem(self) -> str:
        """Why there is no answer now."""
        if self.state == "loading":
            stage, done, total = self.progress
            return f"the model is loading ({stage}, {100 * done // max(total, 1)} %); try again"
        return {
            "restarting": "the engine failed and is started again; try again",
            "stopped": "the server is shutting down",
        }.get(self.state, "the engine has failed; restart the server")

    @property
    def failed_to_load(self) -> bool:
        """Whether there never was an engine, for the reason in `error`."""
        return self.error is not None and self._scheduler is None

    def stop(self, seconds: float = 10.0) -> None:
        """End the thread after the round that it is in; what still runs then fails."""
        self._stop_asked = True
        if self._scheduler is not None:
            self._scheduler.wake()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._load()
            self._serve()
        except BaseException as error:
            self.error = error
            self.state = "failed"
            if self._scheduler is not None:
                log.exception("the engine failed again and is not started any more")
                self._scheduler.stop(self.problem)
        finally:
            self.ready.set()
            self._on_end()

    def _load(self) -> None:
        engine = self._open_engine(self._tell_progress)
        self._scheduler = self._make_scheduler(engine)
        self.state = "ready"
        self.ready.set()

    def _tell_progress(self, stage: str, done: int, total: int) -> None:
        self.progress = (stage, done, total)

    def _serve(self) -> None:
        scheduler = self._scheduler
        assert scheduler is not None
        while not self._stop_asked:
            try:
                scheduler.wait(LOOK_AGAIN_S)
                scheduler.turn()
            except Exception as error:
                if self.n_restarts >= MAX_RESTARTS:
                    raise
                self.n_restarts += 1
                self.state, self.error = "restarting", error
                log.exception("the engine failed and is started again")
                scheduler.restart()
                self.state = "ready"
        self.state = "stopped"
        scheduler.stop(self.problem)
