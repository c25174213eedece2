"""Starting and ending a server: the engine loads while HTTP answers already, and a signal lets what runs come to its end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn

from hotset.engine.scheduler import Scheduler
from hotset.engine.worker import Worker
from hotset.errors import InputError
from hotset.server.app import make_app
from hotset.server.keys import Keys
from hotset.server.serving import Serving, Settings

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.engine.loading import Progress

# After a signal, what runs may go on for so long.
DRAIN_S = 30
# Clients keep idle connections for a quarter of a minute or longer; one that the server closed first fails their next request.
KEEP_ALIVE_S = 75
# Requests that wait per request that runs; beyond that a client is told to come again.
WAITING_PER_LANE = 16


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes any that is free."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    def listen(self) -> socket.socket:
        """A socket that listens; InputError where there can be none."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        found = socket.socket(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((self.host, self.port))
        except (OSError, OverflowError) as error:
            found.close()
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot listen on {self.host} port {self.port}: {reason}; choose another --host or --port"
            ) from error
        found.listen(128)
        return found


class Server(uvicorn.Server):
    """Ends by itself after a signal, instead of dying of it: the first lets what runs come to its end, a second Ctrl-C does not."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    open_engine: Callable[[Progress], Engine],
    address: Address,
    keys: Keys,
    settings: Settings,
    *,
    reuse_drawn: bool = True,
    on_start: Callable[[str], None] = lambda _url: None,
) -> None:
    """Serve until a signal comes; raises what loading raised. `on_start` is told the URL once connections are taken."""
    listener = address.listen()

    def leave() -> None:
        # A model that cannot be loaded ends the server; a failed engine goes on to say so at /health.
        if worker.failed_to_load:
            server.should_exit = True

    worker = Worker(
        open_engine,
        lambda engine: Scheduler(
            engine, n_parallel=settings.n_parallel, max_waiting=settings.max_waiting, reuse_drawn=reuse_drawn
        ),
        on_end=leave,
    )
    app = make_app(Serving(worker, settings), keys, local_only=address.is_local and not keys)
    server = Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=DRAIN_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )
    port = listener.getsockname()[1]
    host = f"[{address.host}]" if ":" in address.host else address.host
    on_start(f"http://{host}:{port}")
    worker.start()
    try:
        server.run(sockets=[listener])
    finally:
        worker.stop()
        listener.close()
    if worker.failed_to_load and worker.error is not None:
        raise worker.error
