"""Ways of asking for a path that mean the same."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class PlainPaths:
    """Middleware: slashes too many, which clients make of a base URL that ends with one, count for nothing; HEAD asks what GET does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = "/" + "/".join(part for part in scope["path"].split("/") if part)
            # The server leaves the body out of its answer by the method that it read itself.
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "method": method}
        await self._app(scope, receive, send)
