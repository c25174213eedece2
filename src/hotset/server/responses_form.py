"""The items, tools and formats of OpenAI's Responses API in the form of its chats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotset.server.chat_prompt import checked_messages, checked_tools
from hotset.server.errors import bad_request

Message = dict[str, Any]
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def chat_messages(instructions: str | None, given: str | Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation; a 400 that names an item that cannot be read."""
    found: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    thoughts = ""
    for i, item in enumerate(given):
        place = f"input[{i}]"
        kind = item.get("type", "message")
        if kind == "reasoning":
            thoughts += text_of(item.get("content") or item.get("summary") or [], f"{place}.content")
            continue
        if kind == "message":
            message: Message = {"role": item.get("role"), "content": text_of(item.get("content"), f"{place}.content")}
        elif kind == "function_call":
            message = {"role": "assistant", "content": "", "tool_calls": [call_of(item, place)]}
        elif kind == "function_call_output":
            output = text_of(item.get("output"), f"{place}.output")
            message = {"role": "tool", "tool_call_id": string(item, "call_id", place), "content": output}
        else:
            raise bad_request(f"{place}: an item of type {str(kind)[:40]!r} cannot be read", place)
        if thoughts and message["role"] == "assistant":
            message["reasoning_content"], thoughts = thoughts, ""
        add(found, message)
    return checked_messages(found, "input")


def add(messages: list[Message], message: Message) -> None:
    """Append a message; a call belongs to the answer before it."""
    last = messages[-1] if messages else {}
    if message.get("tool_calls") and last.get("role") == "assistant":
        last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
    else:
        messages.append(message)


def call_of(item: Mapping[str, Any], place: str) -> Message:
    function = {"name": string(item, "name", place), "arguments": string(item, "arguments", place)}
    return {"id": string(item, "call_id", place), "type": "function", "function": function}


def string(item: Mapping[str, Any], key: str, place: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise bad_request(f"{place}.{key}: must be text", f"{place}.{key}")
    return value


def text_of(value: Any, place: str) -> str:
    """Text, or the text of a list of text parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad_request(f"{place}: must be text or a list of parts", place)
    for i, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") not in TEXTS or not isinstance(part.get("text"), str):
            kind = str(part.get("type"))[:40] if isinstance(part, dict) else "none"
            raise bad_request(
                f"{place}[{i}]: a part of type {kind!r} cannot be read; this server takes text", f"{place}[{i}]"
            )
    return "".join(part["text"] for part in value)


def chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Message] | None:
    """The tools; those that run at OpenAI's have no place here."""
    found = []
    for i, tool in enumerate(tools or ()):
        if tool.get("type") != "function":
            kind = str(tool.get("type"))[:40]
            raise bad_request(f"tools[{i}].type: {kind!r} runs nowhere here; give functions", f"tools[{i}].type")
        names = ("name", "description", "parameters")
        function = {key: tool[key] for key in names if tool.get(key) is not None}
        found.append({"type": "function", "function": function})
    return checked_tools(found)


def chat_tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice
