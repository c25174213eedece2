"""Anthropic's messages, tools and choices in OpenAI's form, which the chat templates are written for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotset.server.chat_prompt import checked_messages, checked_tools
from hotset.server.errors import bad_request

Message = dict[str, Any]
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def openai_messages(system: Any, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation; a 400 that names a block that cannot be read."""
    found: list[Message] = []
    if system:
        found.append({"role": "system", "content": text_of(system, "system")})
    for i, message in enumerate(messages):
        place = f"messages[{i}]"
        if message.get("role") not in ("user", "assistant", "system"):
            raise bad_request(f'{place}.role: must be "user" or "assistant"', f"{place}.role")
        found += turn(message, place)
    return checked_messages(found)


def turn(message: Mapping[str, Any], place: str) -> list[Message]:
    """One message; results of tools become messages of their own, before what else it says."""
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise bad_request(f"{place}.content: must be text or a list of blocks", f"{place}.content")
    found: dict[str, list[Any]] = {kind: [] for kind in READERS}
    for i, block in enumerate(content):
        where = f"{place}.content[{i}]"
        kind = str(block.get("type")) if isinstance(block, dict) else ""
        if kind not in READERS:
            raise bad_request(f"{where}: a block of type {kind[:40]!r} cannot be read; this server takes text", where)
        found[kind].append(READERS[kind](block, where))
    said: Message = {"role": role, "content": "".join(found["text"])}
    if found["thinking"]:
        said["reasoning_content"] = "".join(found["thinking"])
    if found["tool_use"]:
        said["tool_calls"] = found["tool_use"]
    results = found["tool_result"]
    return [*results, *([said] if len(said) > 2 or found["text"] or not results else [])]


def string(block: Mapping[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise bad_request(f"{where}.{key}: must be text", f"{where}.{key}")
    return value


def call_of(block: Mapping[str, Any], where: str) -> Message:
    function = {"name": string(block, "name", where), "arguments": json.dumps(block.get("input") or {})}
    return {"id": string(block, "id", where), "type": "function", "function": function}


def result_of(block: Mapping[str, Any], where: str) -> Message:
    content = text_of(block.get("content") or "", f"{where}.content")
    return {"role": "tool", "tool_call_id": string(block, "tool_use_id", where), "content": content}


READERS: Mapping[str, Callable[[Mapping[str, Any], str], Any]] = {
    "text": lambda block, where: string(block, "text", where),
    "thinking": lambda block, where: string(block, "thinking", where),
    "redacted_thinking": lambda _block, _where: None,  # another model's, and closed to all
    "tool_use": call_of,
    "tool_result": result_of,
}


def text_of(value: Any, where: str) -> str:
    """Text, or the text of a list of text blocks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(b, dict) and b.get("type") == "text" for b in value):
        raise bad_request(f"{where}: must be text or a list of text blocks", where)
    return "".join(string(block, "text", f"{where}[{i}]") for i, block in enumerate(value))


def openai_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Message] | None:
    """The tools; those that run at Anthropic's have no place here."""
    found = []
    for i, tool in enumerate(tools or ()):
        if tool.get("type", "custom") != "custom":
            raise bad_request(
                f"tools[{i}].type: {str(tool['type'])[:40]!r} runs nowhere here; give custom tools", f"tools[{i}].type"
            )
        function = {"name": tool.get("name"), "description": tool.get("description") or ""}
        found.append({"type": "function", "function": {**function, "parameters": tool.get("input_schema") or {}}})
    return checked_tools(found)


def openai_tool_choice(choice: Mapping[str, Any] | None) -> Any:
    """The choice by OpenAI's names."""
    if choice is None:
        return None
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise bad_request('tool_choice.type: must be "auto", "any", "tool" or "none"', "tool_choice.type")
    return CHOICES[kind]
