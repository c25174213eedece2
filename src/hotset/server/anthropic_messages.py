"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's form of a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, JsonValue

from hotset.engine.job import Finished, Token, Usage
from hotset.server.answers import Answers
from hotset.server.anthropic_form import openai_messages, openai_tool_choice, openai_tools
from hotset.server.asking import Ask, asked
from hotset.server.chat_prompt import Chat, chat_prompt, effort_variables
from hotset.server.fields import Body, Stops, checked_params
from hotset.server.parts import Parser, Parts
from hotset.server.serving import ServingOf
from hotset.server.sse import EventStream, event, whole
from hotset.server.strict_json import StrictRoute
from hotset.server.wire import new_id
from hotset.text.feed import Delta

router = APIRouter(route_class=StrictRoute)


class CountRequest(Body):
    """The fields that make a prompt; see Anthropic's reference."""

    model: str | None = Field(None, max_length=1000)
    messages: list[dict[str, JsonValue]] = Field(max_length=10_000)
    system: str | list[dict[str, JsonValue]] | None = None
    tools: list[dict[str, JsonValue]] | None = Field(None, max_length=1000)
    tool_choice: dict[str, JsonValue] | None = None
    thinking: dict[str, JsonValue] | None = None
    output_config: dict[str, JsonValue] | None = None
    # Its older place.
    output_format: dict[str, JsonValue] | None = None

    def chat(self) -> Chat:
        """The conversation in OpenAI's form, with thinking switched as asked where the template knows how."""
        variables = effort_variables((self.output_config or {}).get("effort"), "output_config.effort")
        variables.pop("enable_thinking", None)  # which `thinking` says
        if self.thinking is not None:
            variables["enable_thinking"] = self.thinking.get("type") != "disabled"
        return Chat(openai_messages(self.system, self.messages), openai_tools(self.tools), variables)


class MessagesRequest(CountRequest):
    """See Anthropic's reference."""

    max_tokens: int = Field(ge=1)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    stop_sequences: Stops | None = None
    stream: bool | None = None

    def ask(self) -> Ask:
        params = checked_params(
            {
                "temperature": 1.0 if self.temperature is None else self.temperature,
                "top_k": self.top_k,
                "top_p": self.top_p,
                "max_tokens": self.max_tokens,
                "stop": self.stop_sequences,
            },
            {"stop": "stop_sequences"},
        )
        newer = (self.output_config or {}).get("format")
        return Ask(
            chat=self.chat(),
            params=params,
            tool_choice=openai_tool_choice(self.tool_choice),
            is_one_call=(self.tool_choice or {}).get("disable_parallel_tool_use") is True,
            response_format=self.output_format if newer is None else newer,
            format_name="output_format" if newer is None else "output_config.format",
        )


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, serving: ServingOf) -> dict[str, int]:
    """How many tokens a conversation takes."""
    return {"input_tokens": len((await chat_prompt(serving, body.chat())).ids)}


@router.post("/v1/messages")
async def messages(request: Request, body: MessagesRequest, serving: ServingOf) -> Response:
    """Answer a conversation."""
    answers, parser = await asked(serving, body.ask())
    head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": serving.settings.model}
    if body.stream:
        return EventStream(answers, MessageWriter(answers, parser(), head))
    try:
        return await whole(request, collect(answers, parser(), head))
    finally:
        answers.close()


async def collect(answers: Answers, parser: Parser, head: dict[str, Any]) -> Response:
    parts = Parts()
    async for _, found in answers.events():
        for delta in parser.push(found.text):
            parts.add(delta)
    assert isinstance(found, Finished)
    for delta in parser.flush():
        parts.add(delta)
    content: list[dict[str, Any]] = []
    if parts.reasoning:
        content.append({"type": "thinking", "thinking": parts.reasoning, "signature": ""})
    if parts.content or not (parts.calls or parts.reasoning):
        content.append({"type": "text", "text": parts.content})
    content += [
        {"type": "tool_use", "id": c["id"], "name": c["name"], "input": arguments(c["arguments"])} for c in parts.calls
    ]
    return JSONResponse({**head, "content": content, **ending(found, parts), "usage": usage_facts(found.usage)})


def arguments(text: str) -> Any:
    """A call's arguments as an object; {} where the model was cut short or wrote none."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def ending(end: Finished, parts: Parts) -> dict[str, Any]:
    """Why the answer ended."""
    if end.reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if parts.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if end.stop is None else "stop_sequence", "stop_sequence": end.stop}


def usage_facts(usage: Usage) -> dict[str, int]:
    """Anthropic counts what was read from a cache apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


BLOCKS: Mapping[str, dict[str, Any]] = {
    "content": {"type": "text", "text": ""},
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
}


class Blocks:
    """Deltas as events of content blocks, one open at a time."""

    def __init__(self) -> None:
        self.parts = Parts()
        self._index = -1
        self._open: str | None = None

    def take(self, delta: Delta) -> list[str]:
        """The events of a delta."""
        self.parts.add(delta)
        if delta.kind == "arguments":
            return [self._delta({"type": "input_json_delta", "partial_json": delta.text})]
        if delta.kind == "call":
            call = self.parts.calls[-1]
            return self._begin("call", {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}})
        events = [] if self._open == delta.kind else self._begin(delta.kind, BLOCKS[delta.kind])
        change = (
            {"type": "text_delta", "text": delta.text}
            if delta.kind == "content"
            else {"type": "thinking_delta", "thinking": delta.text}
        )
        return [*events, self._delta(change)]

    def end(self) -> list[str]:
        """Close what is open; an answer has one block at least."""
        begun = self._begin("content", BLOCKS["content"]) if self._index < 0 else []
        return [*begun, *self._close()]

    def _begin(self, kind: str, block: dict[str, Any]) -> list[str]:
        closed = self._close()
        self._index += 1
        self._open = kind
        return [*closed, named({"type": "content_block_start", "index": self._index, "content_block": block})]

    def _close(self) -> list[str]:
        if self._open is None:
            return []
        signed = [self._delta({"type": "signature_delta", "signature": ""})] if self._open == "reasoning" else []
        self._open = None
        return [*signed, named({"type": "content_block_stop", "index": self._index})]

    def _delta(self, change: dict[str, Any]) -> str:
        return named({"type": "content_block_delta", "index": self._index, "delta": change})


def named(value: dict[str, Any]) -> str:
    """An event by the name of its type."""
    return event(value, value["type"])


class MessageWriter:
    """See sse.Writer."""

    def __init__(self, answers: Answers, parser: Parser, head: dict[str, Any]) -> None:
        self._n_prompt = len(answers.jobs[0].prompt)
        self._parser = parser
        self._head = head
        self._blocks = Blocks()
        self._begun = False

    def take(self, _index: int, found: Token | Finished) -> Iterator[str]:
        if not self._begun:
            self._begun = True
            usage = {"input_tokens": self._n_prompt, "output_tokens": 0}
            start = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
            yield named({"type": "message_start", "message": start})
        deltas = self._parser.push(found.text)
        if isinstance(found, Finished):
            deltas += self._parser.flush()
        for delta in deltas:
            yield from self._blocks.take(delta)
        if isinstance(found, Finished):
            yield from self._blocks.end()
            facts = {"delta": ending(found, self._blocks.parts), "usage": usage_facts(found.usage)}
            yield named({"type": "message_delta", **facts})

    def end(self) -> Iterator[str]:
        yield named({"type": "message_stop"})
