"""GET /health: whether the server can answer, and while it loads how far it is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from hotset.server.serving import ServingOf

router = APIRouter()


@router.get("/health")
async def health(serving: ServingOf) -> JSONResponse:
    """200 when ready; 503 while loading (with the progress) and after a failure."""
    worker = serving.worker
    facts: dict[str, Any] = {"restarts": worker.n_restarts}
    if worker.state == "ready":
        return JSONResponse({"status": "ok", **facts})
    if worker.state == "loading":
        stage, done, total = worker.progress
        facts["progress"] = {"stage": stage, "done": done, "total": total}
    return JSONResponse(
        {"status": worker.state, "error": {"message": worker.problem, "type": "unavailable_error"}, **facts}, 503
    )
