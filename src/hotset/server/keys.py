"""The API key: from a file or the environment, compared in constant time, never shown."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hotset.errors import InputError
from hotset.server.errors import ApiError

VARIABLE = "HOTSET_API_KEY"
# Whoever watches over the process must be able to ask how it is.
OPEN_PATH = "/health"
SHORTEST = 8


class Keys:
    """Keys that are accepted; none means that every request is."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        given = list(keys)
        if any(len(key) < SHORTEST for key in given):
            raise InputError(f"an API key is shorter than {SHORTEST} characters; choose a longer one")
        if not all(key.isascii() and key.isprintable() and " " not in key for key in given):
            raise InputError(
                "an API key holds a space or a character beyond ASCII, which clients cannot send; choose another"
            )
        self._keys = [key.encode() for key in given]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"Keys({len(self._keys)})"

    def accept(self, given: Iterable[str]) -> bool:
        """Whether one of the keys given is one of these."""
        found = False
        for key in self._keys:
            for candidate in given:
                found |= hmac.compare_digest(key, candidate.encode("utf-8", "surrogateescape"))
        return found


def read_keys(file: str | None) -> Keys:
    """Keys of a file, one a line, or else that of the environment."""
    if file is None:
        value = os.environ.get(VARIABLE)
        return Keys([value.strip()] if value else ())
    try:
        lines = Path(file).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        raise InputError(f"--api-key-file {file}: {reason}; give a file with one key a line") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise InputError(f"--api-key-file {file}: holds no key; write one a line")
    return Keys(keys)


class RequireKey:
    """Middleware: lets nothing through without a key, but for one path.

    A key comes as a bearer token, as `x-api-key`, or as the password of a browser that asked its user.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] != OPEN_PATH:
            given = list(given_keys(Headers(scope=scope)))
            if not self._keys.accept(given):
                what = "the API key is wrong" if given else "an API key is needed"
                # Chromium asks its user only where Basic is the first scheme of the line and the others have a realm too.
                headers = {"WWW-Authenticate": 'Basic realm="hotset", Bearer realm="hotset"'}
                error = ApiError(401, "authentication_error", f"{what}; send it as a bearer token", headers=headers)
                await error.response(scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def given_keys(headers: Headers) -> Iterable[str]:
    """The keys that a request brings."""
    if key := headers.get("x-api-key"):
        yield key
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        yield value.strip()
    if scheme.lower() == "basic":
        try:
            yield base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return
