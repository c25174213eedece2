"""What all chat APIs do alike: a conversation becomes a prompt, its answers begin, and a parser for them is chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hotset.server.chat_prompt import Chat, Prompt, chat_prompt
from hotset.server.constraint import CHAT_FORMAT, Constraint, constraint_of
from hotset.server.parts import AllContent, ForcedCall, OneCall, Parser
from hotset.server.serving import Wanted
from hotset.text.answer import AnswerParser
from hotset.text.reasoning import reasoning_tags

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.engine import Engine
    from hotset.engine.runner import TokenMask
    from hotset.server.answers import Answers
    from hotset.server.serving import Serving


@dataclass(frozen=True)
class Ask:
    """A request to go on with a conversation, in OpenAI's words."""

    chat: Chat
    params: SamplingParams
    n_answers: int = 1
    n_top: int | None = None
    tool_choice: Any = None
    is_one_call: bool = False
    response_format: Any = None
    format_name: str = CHAT_FORMAT


async def asked(serving: Serving, ask: Ask) -> tuple[Answers, Callable[[], Parser]]:
    """Begin the answers; what is wrong with the request is raised before any work."""
    engine = serving.engine
    constraint = await asyncio.to_thread(
        constraint_of, engine, ask.chat.tools, ask.tool_choice, ask.response_format, ask.format_name
    )
    chat = replace(ask.chat, tools=None) if has_no_use_of_tools(engine, ask, constraint) else ask.chat
    prompt = await chat_prompt(serving, chat)
    mask = None if constraint is None else mask_of(engine, constraint, prompt)
    wanted = Wanted(prompt.ids, ask.params, ask.n_top, mask, special=engine.template is not None)
    parser = parser_of(engine, chat, prompt, constraint)
    return serving.answers([wanted], ask.n_answers), (lambda: OneCall(parser())) if ask.is_one_call else parser


def has_no_use_of_tools(engine: Engine, ask: Ask, constraint: Constraint | None) -> bool:
    """Whether the prompt leaves the tools out: as asked, or because a call is forced on a model whose template knows none."""
    is_forced = constraint is not None and constraint.is_call
    knows_tools = engine.template is not None and engine.template.reads("tools")
    return ask.tool_choice == "none" or (is_forced and not knows_tools)


def mask_of(engine: Engine, constraint: Constraint, prompt: Prompt) -> Callable[[], TokenMask]:
    """The mask of each answer; where the prompt opened the model's reasoning, it begins behind that."""
    tags = None if engine.template is None else reasoning_tags(engine.template.source)
    after = tags.close if tags is not None and tags.opened_by(prompt.tail) else None
    return lambda: constraint.mask(after)


def parser_of(engine: Engine, chat: Chat, prompt: Prompt, constraint: Constraint | None) -> Callable[[], Parser]:
    """How to read the answers."""
    template = engine.template
    is_call = constraint is not None and constraint.is_call
    tools = None if is_call else chat.tools

    def plain() -> Parser:
        return AllContent() if template is None else AnswerParser(template.source, prompt=prompt.tail, tools=tools)

    return (lambda: ForcedCall(plain())) if is_call else plain
