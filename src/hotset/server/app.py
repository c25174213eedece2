"""The web application: every API's routes, behind the key and the limits."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse

from hotset.server import (
    anthropic_messages,
    errors,
    experts,
    health,
    metrics,
    models,
    openai_chat,
    openai_completions,
    openai_responses,
    props,
    slots,
    tokens,
)
from hotset.server.keys import Keys, RequireKey
from hotset.server.limits import Limits
from hotset.server.paths import PlainPaths
from hotset.server.serving import Serving
from hotset.version import __version__

PAGE = Path(__file__).parent / "page"
OPENAI = (models, openai_chat, openai_completions, openai_responses)
APIS = (health, *OPENAI, anthropic_messages, tokens, props, slots, metrics, experts)


def make_app(serving: Serving, keys: Keys, *, local_only: bool) -> FastAPI:
    """The application; with `local_only` it answers only requests that name this machine as their host."""
    app = FastAPI(title="hotset", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.serving = serving
    errors.install(app)
    for api in APIS:
        app.include_router(api.router)
    for file in sorted(PAGE.iterdir()):
        add_file(app, f"/{file.name}", file)
    add_file(app, "/", PAGE / "index.html")
    app.add_middleware(PlainPaths)
    app.add_middleware(RequireKey, keys=keys)
    app.add_middleware(Limits, local_only=local_only)
    return app


def add_file(app: FastAPI, path: str, file: Path) -> None:
    """Serve one file of the page."""

    async def send(_request: Request) -> FileResponse:
        return FileResponse(file)

    app.add_route(path, send, include_in_schema=False)
