"""POST /v1/completions: a text continued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator, Field, JsonValue

from hotset.engine.job import Finished, Token, Usage
from hotset.server.answers import Answers
from hotset.server.constraint import constraint_of
from hotset.server.errors import bad_request
from hotset.server.fields import MAX_ANSWERS, MAX_TOP, Sampling
from hotset.server.serving import Serving, ServingOf, Wanted
from hotset.server.sse import DONE, EventStream, event, whole
from hotset.server.strict_json import StrictRoute
from hotset.server.wire import finite, new_id, timings, usage_facts

if TYPE_CHECKING:
    from hotset.text.tokenizer import Tokenizer

router = APIRouter(route_class=StrictRoute)


def as_prompts(value: Any) -> Any:
    """A text, ids, or a list of either -> a list of texts and lists of ids."""
    if isinstance(value, str):
        return [value]
    is_ids = isinstance(value, list) and value and all(isinstance(i, int) for i in value)
    prompts = [value] if is_ids else value
    if not isinstance(prompts, list) or not prompts:
        raise ValueError("must be a text, a list of token ids, or a list of these")
    for prompt in prompts:
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt)
        ):
            raise ValueError("must be a text, a list of token ids, or a list of these")
    return prompts


class CompletionRequest(Sampling):
    """See OpenAI's reference; `prompt` may be token ids."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(as_prompts), Field(max_length=MAX_ANSWERS)]
    max_tokens: int | None = 16
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    response_format: dict[str, JsonValue] | None = None


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest, serving: ServingOf) -> Response:
    """Continue each prompt `n` times."""
    check(body)
    constraint = await asyncio.to_thread(constraint_of, serving.engine, None, None, body.response_format)
    mask = None if constraint is None else partial(constraint.mask, None)
    ids = await asyncio.to_thread(prompt_ids, serving, body.prompt)
    params = body.params(body.max_tokens)
    echoes = [text for text in echoed(serving, body, ids) for _ in range(body.n_answers)]
    wanted = [Wanted(prompt, params, body.logprobs, mask) for prompt in ids]
    answers = serving.answers(wanted, body.n_answers)
    head = {
        "id": new_id("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": serving.settings.model,
    }
    if body.stream:
        return EventStream(answers, CompletionWriter(body, answers, head, echoes))
    try:
        return await whole(request, collect(body, answers, head, echoes))
    finally:
        answers.close()


def check(body: CompletionRequest) -> None:
    if body.suffix:
        raise bad_request("suffix: text cannot be inserted before another; leave it out", "suffix")
    if body.best_of is not None and body.best_of != body.n_answers:
        raise bad_request(f"best_of: must be n ({body.n_answers}) or left out, not {body.best_of}", "best_of")
    if body.echo and body.logprobs is not None:
        raise bad_request("echo: has no logprobs of the prompt; leave one of the two out", "echo")
    if len(body.prompt) * body.n_answers > MAX_ANSWERS:
        raise bad_request(
            f"n: {len(body.prompt)} prompts times n = {body.n_answers} are more than {MAX_ANSWERS} answers", "n"
        )


def prompt_ids(serving: Serving, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    """Token ids of texts; ids are checked."""
    engine = serving.engine
    return [engine.tokenize(p) if isinstance(p, str) else engine.checked(p) for p in prompts]


def echoed(serving: Serving, body: CompletionRequest, ids: Sequence[list[int]]) -> list[str]:
    """What stands before each prompt's answers."""
    if not body.echo:
        return [""] * len(ids)
    pairs = zip(body.prompt, ids, strict=True)
    return [prompt if isinstance(prompt, str) else serving.engine.detokenize(i) for prompt, i in pairs]


class TokenLog:
    """The older form of logprobs: lists side by side, with where each token's text begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._at = 0

    def facts(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """The lists for tokens that follow those of the last call."""
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for t in tokens:
            assert t.logprob is not None
            lists["tokens"].append(self._text(t.token))
            lists["token_logprobs"].append(finite(t.logprob.value))
            lists["top_logprobs"].append({self._text(token): finite(value) for token, value in t.logprob.top})
            lists["text_offset"].append(self._at)
            self._at += len(t.text)
        return lists

    def _text(self, token: int) -> str:
        """A token's text, or its bytes where they are a part of a character."""
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in raw)


def choice(index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


async def collect(body: CompletionRequest, answers: Answers, head: dict[str, Any], echoes: list[str]) -> Response:
    texts: list[list[str]] = [[echo] for echo in echoes]
    tokens: list[list[Token]] = [[] for _ in echoes]
    ends: dict[int, Finished] = {}
    async for i, found in answers.events():
        texts[i].append(found.text)
        if isinstance(found, Finished):
            ends[i] = found
        elif not found.is_end:
            tokens[i].append(found)
    choices = [
        choice(
            i,
            "".join(texts[i]),
            TokenLog(answers.tokenizer).facts(tokens[i]) if body.logprobs is not None else None,
            ends[i].reason,
        )
        for i in range(len(texts))
    ]
    usage = all_usage(body, [ends[i].usage for i in range(len(texts))])
    return JSONResponse({**head, "choices": choices, "usage": usage, "timings": timings(ends[0].usage)})


def all_usage(body: CompletionRequest, usages: Sequence[Usage]) -> dict[str, Any]:
    """Usage of all prompts together."""
    each = [usage_facts(usages[i : i + body.n_answers]) for i in range(0, len(usages), body.n_answers)]
    total = {
        name: sum(facts[name] for facts in each) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    cached = sum(facts["prompt_tokens_details"]["cached_tokens"] for facts in each)
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}


class CompletionWriter:
    """See sse.Writer."""

    def __init__(self, body: CompletionRequest, answers: Answers, head: dict[str, Any], echoes: list[str]) -> None:
        self._body = body
        self._head = head
        self._logs = [TokenLog(answers.tokenizer) for _ in echoes]
        self._echoes = dict(enumerate(echoes))
        self._ends: dict[int, Finished] = {}

    def take(self, index: int, found: Token | Finished) -> Iterator[str]:
        text, has_logs = self._echoes.pop(index, "") + found.text, self._body.logprobs is not None
        if isinstance(found, Finished):
            self._ends[index] = found
            facts = {"choices": [choice(index, text, None, found.reason)], "timings": timings(found.usage)}
            yield event({**self._head, **facts})
        elif not found.is_end and (text or has_logs):
            log = self._logs[index].facts([found]) if has_logs else None
            yield event({**self._head, "choices": [choice(index, text, log, None)]})

    def end(self) -> Iterator[str]:
        if self._body.includes_usage:
            usage = all_usage(self._body, [self._ends[i].usage for i in sorted(self._ends)])
            yield event({**self._head, "choices": [], "usage": usage})
        yield DONE
