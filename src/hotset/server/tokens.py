"""POST /tokenize, /detokenize and /apply-template: text, tokens and prompts, without generating anything."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import Field, JsonValue

from hotset.server.chat_prompt import Chat, checked_messages, checked_tools, checked_variables, rendered
from hotset.server.fields import Body
from hotset.server.serving import ServingOf
from hotset.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


class TokenizeRequest(Body):
    """`parse_special` reads control tokens written in the text; `with_pieces` adds each token's text."""

    content: str
    add_special: bool = False
    parse_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Body):
    tokens: list[int]


class TemplateRequest(Body):
    messages: list[dict[str, JsonValue]] = Field(max_length=10_000)
    tools: list[dict[str, JsonValue]] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, serving: ServingOf) -> dict[str, Any]:
    """The ids of a text."""
    engine = serving.engine
    ids = await asyncio.to_thread(
        engine.tokenize, body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": i, "piece": piece(engine.tokenizer.token_bytes(i))} for i in ids]}


def piece(raw: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, serving: ServingOf) -> dict[str, str]:
    """The text of ids."""
    return {"content": await asyncio.to_thread(serving.engine.detokenize, body.tokens)}


@router.post("/apply-template")
async def apply_template(body: TemplateRequest, serving: ServingOf) -> dict[str, str]:
    """The prompt that a conversation becomes."""
    chat = Chat(
        checked_messages(body.messages), checked_tools(body.tools), checked_variables(body.chat_template_kwargs)
    )
    return {"prompt": await asyncio.to_thread(rendered, serving.engine, chat)}
