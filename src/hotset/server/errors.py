"""Errors as clients see them: a status, a type and a message, in the words of the API that was called; no paths, no tracebacks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from hotset.errors import (
    BusyError,
    ContextError,
    EngineStoppedError,
    HotsetError,
    InputError,
    PlacementError,
    UnsupportedError,
)

log = logging.getLogger("hotset.server")

# Anthropic's names for statuses; elsewhere the type of the error itself is told.
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
ANTHROPIC_PATH = "/v1/messages"
TOO_LONG = "exceed_context_size_error"


class ApiError(HTTPException):
    """What a client is told: `param` is the field at fault, `extra` are further facts of the error."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.kind = kind
        self.message = message
        self.param = param
        self.extra = extra or {}

    def body(self, path: str) -> dict[str, Any]:
        """The error as the API at `path` writes it."""
        if path.startswith(ANTHROPIC_PATH):
            kind = ANTHROPIC_TYPES.get(self.status_code, "api_error")
            return {"type": "error", "error": {"type": kind, "message": self._anthropics_message(), **self.extra}}
        fields = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status_code}
        return {"error": {**fields, **self.extra}}

    def _anthropics_message(self) -> str:
        """Agents know by Anthropic's own words that a conversation has grown too long, and shorten it."""
        if self.kind != TOO_LONG:
            return self.message
        return f"prompt is too long: {self.extra['n_prompt_tokens']} tokens > {self.extra['n_ctx']} maximum"

    def response(self, path: str) -> JSONResponse:
        return JSONResponse(self.body(path), self.status_code, self.headers)


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "invalid_request_error", message, param=param)


def api_error(error: HotsetError) -> ApiError:
    """An error of the engine as a client is told of it."""
    if isinstance(error, ContextError):
        facts = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
        return ApiError(400, TOO_LONG, str(error), extra=facts)
    if isinstance(error, (InputError, PlacementError)):
        return bad_request(str(error))
    if isinstance(error, BusyError):
        return ApiError(429, "rate_limit_error", str(error), headers={"Retry-After": str(error.retry_after_s)})
    if isinstance(error, EngineStoppedError):
        return ApiError(503, "unavailable_error", str(error), headers={"Retry-After": "1"})
    if isinstance(error, UnsupportedError):  # without the file's path
        return bad_request(f"{error.thing}: {error.problem}; {error.hint}")
    log.error("%s: %s", type(error).__name__, error)
    return ApiError(500, "server_error", f"the request failed ({type(error).__name__}); the server's log says more")


def validation_error(errors: Sequence[Any]) -> ApiError:
    """The first thing that is wrong with a body, by the name of its field."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    name = ".".join(place) or "body"
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = "" if first["type"] == "missing" else f", not {brief(first.get('input'))}"
    return bad_request(f"{name}: {message}{shown}", name)


def brief(value: object) -> str:
    """A value of the client's, short enough to be repeated."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value) if isinstance(value, (str, float)) else str(value) if abs_small(value) else "a number that long"
    return text if len(text) <= 60 else text[:57] + "..."


def abs_small(value: object) -> bool:
    return not isinstance(value, int) or value.bit_length() < 256


def install(app: FastAPI) -> None:
    """Have every error answered in JSON."""

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return validation_error(error.errors()).response(request.url.path)

    @app.exception_handler(HotsetError)
    async def _known(request: Request, error: HotsetError) -> JSONResponse:
        return api_error(error).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, ApiError):
            kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
            error = ApiError(error.status_code, kind, str(error.detail), headers=dict(error.headers or {}))
        return error.response(request.url.path)

    app.add_exception_handler(404, _not_found)
    app.add_exception_handler(405, _not_allowed)

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> JSONResponse:
        unknown = ApiError(500, "server_error", f"a bug in hotset ({type(error).__name__}); the server's log says more")
        return unknown.response(request.url.path)


async def _not_found(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ApiError):
        return error.response(request.url.path)
    message = "there is nothing at this path; the APIs are under /v1, and /openapi.json lists all there is"
    return ApiError(404, "not_found_error", message).response(request.url.path)


async def _not_allowed(request: Request, error: Exception) -> JSONResponse:
    headers = dict(getattr(error, "headers", None) or {})
    message = f"this path takes no {request.method} requests"
    return ApiError(405, "invalid_request_error", message, headers=headers).response(request.url.path)
