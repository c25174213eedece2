"""JSON as the standard has it: no NaN, no infinities, no halves of characters, nothing nested without end."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from hotset.server.errors import ApiError, bad_request

MAX_DEPTH = 100
# The only way in for halves of characters; two that belong together are a character, and fine.
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(text: bytes) -> Any:
    """The value of a body; ApiError where it is no JSON or nests too deeply."""
    try:
        value = json.loads(text.decode(), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is no UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise bad_request(f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a number of thousands of digits, or one of ours
        raise bad_request(f"the body is no JSON: {str(error).partition(';')[0]}") from None
    check_depth(value)
    if SURROGATE.search(text):
        check_texts(value, "")
    return value


def check_texts(value: Any, place: str) -> None:
    """ApiError where a text holds a lone surrogate: it could be sent back to nobody. `value` must not nest deeply."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            name = place or "body"
            raise bad_request(f"{name}: holds a lone surrogate, half of a character; send text", name) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            check_texts(key, place)
            check_texts(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            check_texts(item, f"{place}[{i}]")


def check_depth(value: Any, limit: int = MAX_DEPTH) -> None:
    """ApiError where lists and objects nest deeper than `limit`."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return bad_request(f"the body nests deeper than {MAX_DEPTH} levels")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


class StrictRequest(Request):
    """A request whose body is parsed so."""

    async def json(self) -> Any:
        if not hasattr(self, "_value"):
            self._value = parse(await self.body())
        return self._value


class StrictRoute(APIRoute):
    """A route that reads bodies so, and only those that say they are JSON.

    A web page of another origin can send any other kind without being asked, so they are refused.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise ApiError(
                        415, "invalid_request_error", "send JSON, with the header Content-Type: application/json"
                    )
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
