"""Server-sent events that end the work behind them when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotset.errors import HotsetError
from hotset.server.errors import api_error

if TYPE_CHECKING:
    from hotset.engine.job import Finished, Token
    from hotset.server.answers import Answers, Told

T = TypeVar("T")


as_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def event(value: Any, name: str | None = None) -> str:
    """One event, with a name where the API names them."""
    data = "data: " + as_json(value)
    return f"event: {name}\n{data}\n\n" if name else data + "\n\n"


class TextEvent:
    """Events that differ in one text: what `make` gives of it, rendered once around it."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        hole = secrets.token_hex(16)
        self._before, self._after = event(make(hole)).split(as_json(hole))

    def __call__(self, text: str) -> str:
        return self._before + as_json(text) + self._after


DONE = "data: [DONE]\n\n"
# A line that readers of events pass over. Clients and proxies give up on connections that are silent for a minute or a few.
STILL_THERE = ": still there\n\n"
PATIENCE_S = 15.0


class Writer(Protocol):
    """Says in an API's words what comes of the answers to one request."""

    def take(self, index: int, found: Token | Finished) -> Iterable[str]:
        """The events of what came of answer `index`."""

    def end(self) -> Iterable[str]:
        """The events after the end of all answers."""


class EventStream(Response):
    """Sends answers as they come, what came together in one piece. As soon as the client is gone, also while nothing comes, they are closed.

    The answer begins with its first event, so that an error before it has a status of its own; a later one is an event. Where the first takes
    long (a long prompt, a long queue) the answer begins without it, with a comment again and again.
    """

    media_type = "text/event-stream"

    def __init__(self, answers: Answers, writer: Writer) -> None:
        self._answers = answers
        self._writer = writer
        self._begun = False
        self.status_code = 200
        self.background = None
        self.init_headers({"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientGoneError, OSError):
                await unless_gone(receive, self._send_all(scope, receive, send))
        finally:
            self._answers.close()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = self._writer
        try:
            told = await self._first(send)
            while told:
                await self._send([text for index, found in told for text in writer.take(index, found)], send)
                told = await self._answers.take()
            await self._send(writer.end(), send)
        except HotsetError as error:
            if not self._begun:
                await api_error(error).response(scope["path"])(scope, receive, send)
                return
            body = api_error(error).body(scope["path"])
            await self._send([event(body, "error" if "type" in body else None)], send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _first(self, send: Send) -> list[Told]:
        """What comes first."""
        waiting = asyncio.ensure_future(self._answers.take())
        try:
            while not (await asyncio.wait({waiting}, timeout=PATIENCE_S))[0]:
                await self._send([STILL_THERE], send)
            return waiting.result()
        finally:
            waiting.cancel()

    async def _send(self, texts: Iterable[str], send: Send) -> None:
        body = "".join(texts).encode()
        if not body:
            return
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})


class ClientGoneError(Exception):
    """The client closed the connection."""


async def until_gone(receive: Receive) -> None:
    """Wait for the client to close the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client closes the connection; ClientGoneError then."""
    gone = asyncio.ensure_future(until_gone(receive))
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        await _cancel(gone)
        await _cancel(task)


async def _cancel(task: Awaitable[Any]) -> None:
    assert isinstance(task, asyncio.Future)
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


async def whole(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """A response that is made in one piece, or an empty one that nobody will read."""
    try:
        return await unless_gone(request.receive, work)
    except ClientGoneError:
        return Response(status_code=499)
