"""The web application: every API's routes, behind the key and the limits."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

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
    app.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    app.add_middleware(RequireKey, keys=keys)
    app.add_middleware(Limits, local_only=local_only)
    return app
