"""GET /v1/models: the one model there is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from hotset.server.errors import ApiError
from hotset.server.serving import Serving, ServingOf

router = APIRouter()


def model_facts(serving: Serving) -> dict[str, Any]:
    """The model as OpenAI's clients list it, with a few facts of ours."""
    engine = serving.engine
    config = engine.config
    meta = {
        "name": config.name,
        "architecture": config.architecture,
        "n_vocab": config.n_vocab,
        "n_ctx": serving.scheduler.n_ctx,
        "n_ctx_train": config.n_ctx_train,
        "n_layers": config.n_layers,
        "n_experts": config.n_experts,
        "n_picks": config.n_picks,
    }
    return {
        "id": serving.settings.model,
        "object": "model",
        "created": serving.created,
        "owned_by": "hotset",
        "type": "model",
        "display_name": config.name or serving.settings.model,
        "meta": meta,
    }


@router.get("/v1/models")
async def models(serving: ServingOf) -> dict[str, Any]:
    """All models, which is one."""
    one = model_facts(serving)
    return {"object": "list", "data": [one], "has_more": False, "first_id": one["id"], "last_id": one["id"]}


@router.get("/v1/models/{name:path}")
async def model(name: str, serving: ServingOf) -> dict[str, Any]:
    """The model of that name."""
    if name != serving.settings.model:
        raise ApiError(404, "not_found_error", f"this server has the model {serving.settings.model!r} alone")
    return model_facts(serving)
