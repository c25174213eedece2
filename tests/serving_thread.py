"""A server in a thread on a free port, and a plain client for it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from hotset.engine.engine import Engine
from hotset.engine.scheduler import Scheduler
from hotset.engine.worker import Worker
from hotset.server.app import make_app
from hotset.server.keys import Keys
from hotset.server.serving import Serving, Settings

PATIENCE_S = 60


class Client:
    """Talks to one server."""

    def __init__(self, port: int, worker: Worker) -> None:
        self.port = port
        self.worker = worker
        self.url = f"http://127.0.0.1:{port}"

    @property
    def scheduler(self) -> Scheduler:
        return self.worker.scheduler

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        status, _, body = self.request("GET", path, headers=headers)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, value: Any, *, status: int = 200, text: str | None = None) -> Any:
        """The JSON answer to a JSON value (or to `text` as it is), which must have that status."""
        sent = json.dumps(value) if text is None else text
        found, _, body = self.request("POST", path, sent.encode(), {"Content-Type": "application/json"})
        assert found == status, body
        return json.loads(body)

    def events(self, path: str, value: Any) -> list[tuple[str | None, Any]]:
        """Names and values of the events of a stream, without the closing mark, which must be there for OpenAI's older APIs."""
        sent = json.dumps({**value, "stream": True}).encode()
        status, headers, body = self.request("POST", path, sent, {"Content-Type": "application/json"})
        assert status == 200, body
        assert headers["content-type"].startswith("text/event-stream")
        found = []
        for block in body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if fields.get("data", "[DONE]") != "[DONE]":
                found.append((fields.get("event"), json.loads(fields["data"])))
        return found

    def open(self, path: str, value: Any) -> socket.socket:
        """A connection on which a request was sent and nothing read."""
        sent = json.dumps(value).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        connection.sendall(head.encode() + sent)
        return connection


@contextmanager
def serving(
    open_engine: Callable[..., Engine], *, n_parallel: int = 4, max_waiting: int = 64, keys: tuple[str, ...] = (), wait: bool = True
) -> Iterator[Client]:  # fmt: skip
    listener = socket.create_server(("127.0.0.1", 0))
    worker = Worker(open_engine, lambda engine: Scheduler(engine, n_parallel=n_parallel, max_waiting=max_waiting))
    app = make_app(Serving(worker, Settings("demo", n_parallel, max_waiting)), Keys(keys), local_only=not keys)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    worker.start()
    try:
        if wait:
            assert worker.ready.wait(PATIENCE_S)
        yield Client(listener.getsockname()[1], worker)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        worker.stop()
        listener.close()


def until(done: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for something to become true."""
    pause = threading.Event()
    for _ in range(int(seconds * 100)):
        if value := done():
            return value
        pause.wait(0.01)
    raise AssertionError("it did not happen")
