"""GET /props: how the server is set up."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from hotset.config import SamplingParams
from hotset.server.serving import ServingOf
from hotset.version import __version__

router = APIRouter()


@router.get("/props")
async def props(serving: ServingOf) -> dict[str, Any]:
    """The context of every request, the defaults of sampling, the template, and where memory went."""
    engine = serving.engine
    defaults = vars(SamplingParams())
    settings = {name: value for name, value in defaults.items() if isinstance(value, (int, float, type(None)))}
    return {
        "model_alias": serving.settings.model,
        "total_slots": serving.settings.n_parallel,
        "default_generation_settings": {"n_ctx": serving.scheduler.n_ctx, "params": settings},
        "chat_template": "" if engine.template is None else engine.template.source,
        "bos_token": spelled(serving, engine.tokenizer.bos_id),
        "eos_token": spelled(serving, engine.tokenizer.eos_id),
        "device": engine.device,
        "notes": list(engine.notes),
        "memory": [{"name": r.name, "where": r.where, "bytes": r.n_bytes, "note": r.note} for r in engine.memory.rows],
        "memory_budget": engine.memory.budget,
        "build_info": f"hotset {__version__}",
    }


def spelled(serving: ServingOf, token: int | None) -> str:
    return "" if token is None else serving.engine.tokenizer.token_text(token)
