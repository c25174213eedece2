"""GET /slots: what each of the requests that may run at once is doing; nothing of what they say."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from hotset.server.serving import ServingOf

router = APIRouter()


@router.get("/slots")
async def slots(serving: ServingOf) -> list[dict[str, Any]]:
    """One entry for each sequence; `n_held` tokens lie in its KV cache."""
    scheduler = serving.scheduler
    return [
        {
            "id": state.seq,
            "n_ctx": scheduler.n_ctx,
            "is_processing": state.is_busy,
            "phase": ("prompt" if state.is_prompt else "decode") if state.is_busy else "idle",
            "n_held": state.n_held,
            "n_prompt_tokens": state.n_prompt,
            "n_decoded": state.n_drawn,
        }
        for state in scheduler.lane_states()
    ]
