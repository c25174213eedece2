"""What every request is held to: the size of its body, the host it names, and the headers of its answer."""

from __future__ import annotations

from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotset.server.errors import ApiError

MAX_BODY = 8 << 20
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class TooLargeError(ApiError):
    def __init__(self) -> None:
        super().__init__(413, "request_too_large", f"the body is larger than {MAX_BODY >> 20} MiB")


class Limits:
    """Middleware. With `local_only` a request must name this machine as its host: a web page whose name was made to point here does not."""

    def __init__(self, app: ASGIApp, *, local_only: bool, max_body: int = MAX_BODY) -> None:
        self._app = app
        self._local_only = local_only
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if (problem := self._problem(Headers(scope=scope))) is not None:
            await problem.response(scope["path"])(scope, receive, send_with_headers)
            return
        n_read = 0

        async def receive_within_limit() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self._max_body:
                raise TooLargeError
            return message

        await self._app(scope, receive_within_limit, send_with_headers)

    def _problem(self, headers: Headers) -> ApiError | None:
        if self._local_only and not is_local(headers.get("host", "")):
            return ApiError(
                403,
                "permission_error",
                "the Host header names another machine; call this server by localhost, or start it with an API key",
            )
        length = headers.get("content-length", "0")
        return TooLargeError() if length.isdecimal() and int(length[:20]) > self._max_body else None


def is_local(host: str) -> bool:
    """Whether a host, with or without a port, is this machine by name or address."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in ("localhost", ""):
        return name != ""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
