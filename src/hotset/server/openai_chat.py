"""POST /v1/chat/completions: the next message of a conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, JsonValue

from hotset.engine.job import Finished, Token
from hotset.server.answers import Answers
from hotset.server.asking import Ask, asked
from hotset.server.chat_prompt import Chat, checked_messages, checked_tools, checked_variables, effort_variables
from hotset.server.errors import bad_request
from hotset.server.fields import MAX_TOP, Sampling
from hotset.server.parts import Parser, Parts
from hotset.server.serving import ServingOf
from hotset.server.sse import DONE, EventStream, TextEvent, event, whole
from hotset.server.strict_json import StrictRoute
from hotset.server.wire import logprob_facts, new_id, timings, usage_facts
from hotset.text.feed import Delta, Kind

router = APIRouter(route_class=StrictRoute)


class ChatRequest(Sampling):
    """See OpenAI's reference. `chat_template_kwargs` are variables of the model's own template."""

    messages: list[dict[str, JsonValue]] = Field(max_length=10_000)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    response_format: dict[str, JsonValue] | None = None
    tools: list[dict[str, JsonValue]] | None = Field(None, max_length=1000)
    tool_choice: str | dict[str, JsonValue] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @property
    def n_top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def chat(self) -> Chat:
        """The conversation with the variables of its template."""
        effort = effort_variables(self.reasoning_effort, "reasoning_effort")
        variables = {**effort, **checked_variables(self.chat_template_kwargs)}
        return Chat(checked_messages(self.messages), checked_tools(self.tools), variables)

    def ask(self) -> Ask:
        newer = self.max_completion_tokens is not None
        limit = self.max_completion_tokens if newer else self.max_tokens
        return Ask(
            chat=self.chat(),
            params=self.params(limit, "max_completion_tokens" if newer else "max_tokens"),
            n_answers=self.n_answers,
            n_top=self.n_top,
            tool_choice=self.tool_choice,
            is_one_call=self.parallel_tool_calls is False,
            response_format=self.response_format,
        )


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatRequest, serving: ServingOf) -> Response:
    """Answer a conversation, `n` times."""
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs: needs logprobs to be true", "top_logprobs")
    answers, parser = await asked(serving, body.ask())
    head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": serving.settings.model}
    if body.stream:
        return EventStream(answers, ChatWriter(body, answers, parser, head))
    try:
        return await whole(request, collect(answers, parser, head))
    finally:
        answers.close()


def finish_reason(end: Finished, parts: Parts) -> str:
    return "tool_calls" if parts.calls and end.reason == "stop" else end.reason


async def collect(answers: Answers, parser: Callable[[], Parser], head: dict[str, Any]) -> Response:
    n = len(answers.jobs)
    parsers, parts = [parser() for _ in range(n)], [Parts() for _ in range(n)]
    logs: list[list[Token]] = [[] for _ in range(n)]
    ends: dict[int, Finished] = {}
    async for i, found in answers.events():
        for delta in parsers[i].push(found.text):
            parts[i].add(delta)
        if isinstance(found, Finished):
            ends[i] = found
            for delta in parsers[i].flush():
                parts[i].add(delta)
        elif found.logprob is not None and not found.is_end:
            logs[i].append(found)
    choices = [
        {
            "index": i,
            "message": message(parts[i]),
            "logprobs": log_facts([logprob_facts(answers.tokenizer, t) for t in logs[i]], answers.jobs[i].n_top),
            "finish_reason": finish_reason(ends[i], parts[i]),
        }
        for i in range(n)
    ]
    usage = usage_facts([ends[i].usage for i in range(n)])
    facts = {"object": "chat.completion", "choices": choices, "usage": usage, "timings": timings(ends[0].usage)}
    return JSONResponse({**head, **facts})


def log_facts(content: list[dict[str, Any]], n_top: int | None) -> dict[str, Any] | None:
    return None if n_top is None else {"content": content, "refusal": None}


def message(parts: Parts) -> dict[str, Any]:
    """The whole answer as a message; content is null where there are only calls."""
    content = parts.content if parts.content or not parts.calls else None
    found: dict[str, Any] = {"role": "assistant", "content": content}
    if parts.reasoning:
        found["reasoning_content"] = parts.reasoning
    if parts.calls:
        found["tool_calls"] = parts.tool_calls()
    return found


def change(delta: Delta, parts: Parts) -> dict[str, Any]:
    """What a delta, already added to `parts`, adds to the message."""
    if delta.kind == "content":
        return {"content": delta.text}
    if delta.kind == "reasoning":
        return {"reasoning_content": delta.text}
    if delta.kind == "arguments":
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    call = parts.tool_calls()[-1]
    return {"tool_calls": [{"index": len(parts.calls) - 1, **call}]}


class ChatWriter:
    """See sse.Writer."""

    def __init__(self, body: ChatRequest, answers: Answers, parser: Callable[[], Parser], head: dict[str, Any]) -> None:
        self._body = body
        self._tokenizer = answers.tokenizer
        self._head = {**head, "object": "chat.completion.chunk"}
        n = len(answers.jobs)
        self._parsers, self._parts = [parser() for _ in range(n)], [Parts() for _ in range(n)]
        self._texts: dict[tuple[int, Kind], TextEvent] = {}
        self._begun: set[int] = set()
        self._ends: dict[int, Finished] = {}

    def take(self, index: int, found: Token | Finished) -> Iterator[str]:
        parser, parts = self._parsers[index], self._parts[index]
        if index not in self._begun:
            self._begun.add(index)
            yield event(self._chunk(index, {"role": "assistant", "content": ""}))
        new = parser.push(found.text)
        if isinstance(found, Finished):
            new += parser.flush()
        logs = None
        if isinstance(found, Token) and found.logprob is not None and not found.is_end:
            logs = [logprob_facts(self._tokenizer, found)]
        if logs and not new:
            yield event(self._chunk(index, {}, logs=logs))
        for delta in new:
            parts.add(delta)
            if delta.kind in ("content", "reasoning") and logs is None:
                yield self._text(index, delta)
            else:
                yield event(self._chunk(index, change(delta, parts), logs=logs))
            logs = None
        if isinstance(found, Finished):
            self._ends[index] = found
            yield event(self._chunk(index, {}, finish_reason(found, parts), timings=timings(found.usage)))

    def end(self) -> Iterator[str]:
        if self._body.includes_usage:
            usage = usage_facts([self._ends[i].usage for i in sorted(self._ends)])
            yield event({**self._head, "choices": [], "usage": usage})
        yield DONE

    def _text(self, index: int, delta: Delta) -> str:
        """The event of a chunk that holds nothing but text."""
        kind = delta.kind
        if (index, kind) not in self._texts:
            parts = self._parts[index]
            self._texts[index, kind] = TextEvent(lambda text: self._chunk(index, change(Delta(kind, text), parts)))
        return self._texts[index, kind](delta.text)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        *,
        logs: list[dict[str, Any]] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        if logs is not None:
            choice["logprobs"] = log_facts(logs, self._body.n_top)
        return {**self._head, "choices": [choice], **more}
