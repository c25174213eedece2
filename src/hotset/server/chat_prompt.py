"""From the messages of a request to the tokens of a prompt."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotset.server.errors import bad_request
from hotset.text.chat import ChatTemplate, encode_chat
from hotset.text.messages import prepared_messages

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.server.serving import Serving

ROLES = ("system", "developer", "user", "assistant", "tool")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What a template writes after a prompt fits in so many tokens; enough to see whether it opened a thought.
TAIL = 32
# What a template is given besides its variables, by the names of what renders it.
RESERVED = frozenset(inspect.signature(encode_chat).parameters) | frozenset(
    inspect.signature(ChatTemplate.render).parameters
)


@dataclass(frozen=True)
class Chat:
    """A conversation in OpenAI's form, and the variables that its template is given."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """The prompt's tokens, and the text of the last of them."""

    ids: list[int]
    tail: str


async def chat_prompt(serving: Serving, chat: Chat) -> Prompt:
    """The prompt of a chat; templates may take their time, so not on the event loop."""
    engine = serving.engine
    ids = await asyncio.to_thread(encode, engine, chat)
    return Prompt(ids, engine.tokenizer.decode(ids[-TAIL:]))


def encode(engine: Engine, chat: Chat) -> list[int]:
    """The model's own template, or, where it has none, all messages as one text that it continues."""
    check_tools_are_known(engine, chat)
    if engine.template is not None:
        return encode_chat(
            engine.tokenizer, engine.template, for_template(engine, chat), tools=chat.tools, **chat.variables
        )
    return engine.tokenize(plain_text(chat.messages))


def rendered(engine: Engine, chat: Chat) -> str:
    """The same as text."""
    check_tools_are_known(engine, chat)
    if engine.template is None:
        return plain_text(chat.messages)
    messages = prepared_messages(engine.template, for_template(engine, chat))
    return engine.template.render(messages, tools=chat.tools, **chat.variables)


def check_tools_are_known(engine: Engine, chat: Chat) -> None:
    if chat.tools and (engine.template is None or not engine.template.reads("tools")):
        raise bad_request("tools: the model's chat template knows no tools, so it cannot be told of any", "tools")


def for_template(engine: Engine, chat: Chat) -> list[dict[str, Any]]:
    """The messages, with the role `developer` only for templates that know it."""
    if engine.template is not None and "developer" in engine.template.source:
        return chat.messages
    return [{**m, "role": "system"} if m["role"] == "developer" else m for m in chat.messages]


def plain_text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(text_of(m.get("content")) for m in messages)


def text_of(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or ())


def checked_messages(messages: Sequence[Any], name: str = "messages") -> list[dict[str, Any]]:
    """The messages, or a 400 that names what this server cannot take: unknown roles, images, sound."""
    if not messages:
        raise bad_request(f"{name}: must hold at least one message", name)
    for i, message in enumerate(messages):
        place = f"{name}[{i}]"
        if message.get("role") not in ROLES:
            raise bad_request(f"{place}.role: must be one of {', '.join(ROLES)}", f"{place}.role")
        check_content(message.get("content"), f"{place}.content")
        for key in ("reasoning_content", "name", "tool_call_id"):
            if not isinstance(message.get(key), (str, type(None))):
                raise bad_request(f"{place}.{key}: must be text", f"{place}.{key}")
        if not isinstance(message.get("tool_calls"), (list, type(None))):
            raise bad_request(f"{place}.tool_calls: must be a list", f"{place}.tool_calls")
    return [dict(message) for message in messages]


def check_content(content: Any, place: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise bad_request(f"{place}: must be text or a list of parts", place)
    for i, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else None
            shown = f"a part of type {str(kind)[:40]!r}" if kind else "such a part"
            raise bad_request(f"{place}[{i}]: {shown} cannot be read; this server takes text", f"{place}[{i}]")


def checked_variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """The variables of a template that `chat_template_kwargs` gives; a 400 where one would take the place of something else."""
    found = dict(variables or {})
    if reserved := found.keys() & RESERVED:
        name = f"chat_template_kwargs.{min(reserved)}"
        raise bad_request(f"{name}: is no variable of a template, as the server sets it", name)
    return found


def effort_variables(effort: Any, name: str) -> dict[str, Any]:
    """How hard to think, and whether, as templates are told."""
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise bad_request(f"{name}: must be one of {', '.join(EFFORTS)}", name)
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def checked_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """The tools in OpenAI's form, None for none; a 400 that names what is wrong."""
    for i, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        place = f"tools[{i}]"
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise bad_request(f'{place}: must be an object with "type": "function" and a "function"', place)
        if not isinstance(function.get("name"), str) or not 0 < len(function["name"]) <= 256:
            raise bad_request(f"{place}.function.name: must be text of 1 to 256 characters", f"{place}.function.name")
        if not isinstance(function.get("parameters"), (dict, type(None))):
            raise bad_request(f"{place}.function.parameters: must be a JSON schema", f"{place}.function.parameters")
    return [{**tool, "function": told(tool["function"])} for tool in tools] if tools else None


def told(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function with what some templates cannot do without, and clients may leave out."""
    found = {**function, "description": function.get("description") or ""}
    if found.get("parameters") is None:
        found["parameters"] = {"type": "object", "properties": {}}
    return found
