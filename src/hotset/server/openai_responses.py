"""POST /v1/responses: OpenAI's Responses API. Nothing is stored, so the conversation comes whole with every request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, JsonValue

from hotset.engine.job import Finished, Token
from hotset.server.answers import Answers
from hotset.server.asking import Ask, asked
from hotset.server.chat_prompt import Chat, effort_variables
from hotset.server.errors import bad_request
from hotset.server.fields import Body, checked_params
from hotset.server.parts import Parser
from hotset.server.response_items import Events, Items
from hotset.server.responses_form import chat_messages, chat_tool_choice, chat_tools
from hotset.server.serving import ServingOf
from hotset.server.sse import EventStream, event, whole
from hotset.server.strict_json import StrictRoute
from hotset.server.wire import new_id
from hotset.text.feed import Delta

router = APIRouter(route_class=StrictRoute)


class ResponseRequest(Body):
    """See OpenAI's reference."""

    model: str | None = Field(None, max_length=1000)
    input: str | list[dict[str, JsonValue]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, JsonValue]] | None = Field(None, max_length=1000)
    tool_choice: str | dict[str, JsonValue] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, JsonValue] | None = None
    reasoning: dict[str, JsonValue] | None = None
    metadata: dict[str, JsonValue] | None = None
    previous_response_id: str | None = None
    conversation: JsonValue = None
    stream: bool | None = None

    def ask(self) -> Ask:
        for name in ("previous_response_id", "conversation"):
            if getattr(self, name) is not None:
                raise bad_request(f"{name}: answers are not kept here; send the whole conversation", name)
        settings = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_output_tokens}
        variables = effort_variables((self.reasoning or {}).get("effort"), "reasoning.effort")
        return Ask(
            chat=Chat(chat_messages(self.instructions, self.input), chat_tools(self.tools), variables),
            params=checked_params(settings, {"max_tokens": "max_output_tokens"}),
            tool_choice=chat_tool_choice(self.tool_choice),
            is_one_call=self.parallel_tool_calls is False,
            response_format=(self.text or {}).get("format"),
            format_name="text.format",
        )

    def head(self, model: str) -> dict[str, Any]:
        """The response before there is anything in it."""
        return {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": self.reasoning,
            "store": False,
            "temperature": self.temperature,
            "text": self.text or {"format": {"type": "text"}},
            "tool_choice": self.tool_choice or "auto",
            "tools": self.tools or [],
            "top_p": self.top_p,
            "truncation": "disabled",
            "usage": None,
        }


@router.post("/v1/responses")
async def responses(request: Request, body: ResponseRequest, serving: ServingOf) -> Response:
    """Answer a conversation."""
    answers, parser = await asked(serving, body.ask())
    head = body.head(serving.settings.model)
    if body.stream:
        return EventStream(answers, ResponseWriter(parser(), head))
    try:
        return await whole(request, collect(answers, parser(), head))
    finally:
        answers.close()


def finished(head: dict[str, Any], items: Items, end: Finished) -> dict[str, Any]:
    """The response when all is said."""
    is_cut = end.reason == "length"
    usage = end.usage
    return {
        **head,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": items.output,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": items.n_reasoning},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }


class Reading:
    """An answer as items."""

    def __init__(self, parser: Parser) -> None:
        self.items = Items()
        self._parser = parser

    def take(self, found: Token | Finished) -> Events:
        """The events of what came."""
        events = self._taken(self._parser.push(found.text))
        if isinstance(found, Token):
            self.items.count()
            return events
        return [*events, *self._taken(self._parser.flush()), *self.items.end(is_cut=found.reason == "length")]

    def _taken(self, deltas: list[Delta]) -> Events:
        return [one for delta in deltas for one in self.items.take(delta)]


async def collect(answers: Answers, parser: Parser, head: dict[str, Any]) -> Response:
    reading = Reading(parser)
    async for _, found in answers.events():
        reading.take(found)
    assert isinstance(found, Finished)
    return JSONResponse(finished(head, reading.items, found))


class ResponseWriter:
    """See sse.Writer."""

    def __init__(self, parser: Parser, head: dict[str, Any]) -> None:
        self._reading = Reading(parser)
        self._head = head
        self._n = 0

    def take(self, _index: int, found: Token | Finished) -> Iterator[str]:
        if not self._n:
            yield self._numbered("response.created", response=self._head)
            yield self._numbered("response.in_progress", response=self._head)
        for kind, facts in self._reading.take(found):
            yield self._numbered(kind, **facts)
        if isinstance(found, Finished):
            response = finished(self._head, self._reading.items, found)
            yield self._numbered(f"response.{response['status']}", response=response)

    def end(self) -> Iterator[str]:
        return iter(())

    def _numbered(self, kind: str, **facts: Any) -> str:
        self._n += 1
        return event({"type": kind, "sequence_number": self._n - 1, **facts}, kind)
