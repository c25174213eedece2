"""Messages as clients send them (OpenAI's form) in the form that chat templates are written for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from hotset.errors import InputError

if TYPE_CHECKING:
    from hotset.text.chat import ChatTemplate

Message = dict[str, Any]
THOUGHTS = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
NEEDLE = "needle"
# Some templates want nine letters or digits and take no other id.
SHORT_ID = re.compile("[A-Za-z0-9]{9}")
PROBE_ID, LONG_PROBE_ID = "abcdefghi", "call-abcdefghi"


def prepared_messages(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return copies of `messages` that say the same and suit `template`.

    Content that is null becomes "", content of text parts one text where the template wants that. `reasoning_content` is also given under the names `reasoning` and
    `thinking`, and is taken from between <think> tags where the client left it in the content. The arguments of calls become objects,
    or text where the template writes only text. System messages at the beginning become one, and ids of calls nine characters, where
    the template takes nothing else. Raises InputError where a message is no message.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InputError(f"messages must be a list of messages, not {type(messages).__name__}")
    found = [prepared(template, message, f"messages[{n}]") for n, message in enumerate(messages)]
    # What a template takes is found out by rendering, so only where it matters.
    if (together := with_one_system(found)) != found and template.wants_one_system:
        found = together
    if (short := list(map(with_short_ids, found))) != found and template.wants_short_ids:
        found = short
    return found


def prepared(template: ChatTemplate, given: Mapping[str, Any], name: str) -> Message:
    if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
        raise InputError(f'{name} must be an object with a "role" that is text, such as "user"')
    message: Message = {**given, "content": "" if given.get("content") is None else given["content"]}
    if not isinstance(message["content"], str) and template.wants_one_text:
        message["content"] = joined(message["content"])
    if message["role"] != "assistant":
        return message
    if "reasoning_content" in template.source and message.get("reasoning_content") is None:
        take_thoughts(message)
    calls = message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [
            prepared_call(template, call, f"{name}.tool_calls[{n}]") for n, call in enumerate(calls)
        ]
    name_thoughts(message)
    return message


def with_one_system(messages: list[Message]) -> list[Message]:
    """Put the system messages at the beginning together, by either of their names."""
    first = list(takewhile(lambda message: message["role"] in ("system", "developer"), messages))
    if len(first) < 2:
        return messages
    contents = [joined(message["content"]) for message in first]
    if not all(isinstance(content, str) for content in contents):  # pictures and the like, which the template may know
        return messages
    return [{**first[0], "content": "\n\n".join(contents)}, *messages[len(first) :]]


def with_short_ids(message: Message) -> Message:
    """Give calls and their results ids of nine characters, the same for the same."""
    if isinstance(message.get("tool_call_id"), str):
        return {**message, "tool_call_id": short_id(message["tool_call_id"])}
    if "tool_calls" not in message:
        return message
    calls = [{**c, "id": short_id(c["id"])} if isinstance(c.get("id"), str) else c for c in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def short_id(call_id: str) -> str:
    if SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def joined(content: Any) -> Any:
    """Return parts that are all text as one text; anything else as it is."""
    parts = content if isinstance(content, (list, tuple)) else [None]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    return "".join(map(str, texts)) if all(isinstance(text, str) for text in texts) else content


def take_thoughts(message: Message) -> None:
    content = message["content"]
    thoughts = THOUGHTS.match(content) if isinstance(content, str) else None
    if thoughts:
        message["reasoning_content"] = thoughts[1].strip()
        message["content"] = content[thoughts.end() :]


def name_thoughts(message: Message) -> None:
    """Give the reasoning its other names; a message with content and calls has no place for it in the templates that use them."""
    thoughts = message.get("reasoning_content")
    if isinstance(thoughts, str) and thoughts and not (message["content"] and message.get("tool_calls")):
        message.setdefault("reasoning", thoughts)
        message.setdefault("thinking", thoughts)


def prepared_call(template: ChatTemplate, given: Any, name: str) -> Message:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f'{name} must be an object with a "function" that has a "name"')
    arguments = function.get("arguments")
    if template.wants_argument_text:
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    else:
        arguments = parsed_arguments(arguments, name)
    return {**given, "function": {**function, "arguments": arguments}}


def parsed_arguments(arguments: Any, name: str) -> Any:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InputError(f"{name}.function.arguments is {arguments[:60]!r}, but must be a JSON object")
    return parsed


def writes_objects(template: ChatTemplate) -> bool:
    """Whether `template` can write a call whose arguments are an object, or can write none."""
    return NEEDLE in called(template, {"x": NEEDLE}) or NEEDLE not in called(template, json.dumps({"x": NEEDLE}))


def writes_parts(template: ChatTemplate) -> bool:
    """Whether `template` writes content of parts as it writes their text, or writes no content that is one text."""
    as_text = attempt(template, [{"role": "user", "content": NEEDLE}])
    return NEEDLE not in as_text or as_text == attempt(
        template, [{"role": "user", "content": [{"type": "text", "text": NEEDLE}]}]
    )


def takes_systems(template: ChatTemplate) -> bool:
    """Whether `template` writes a second system message at the beginning, or none at all."""
    system, user = {"role": "system", "content": NEEDLE}, {"role": "user", "content": "x"}
    return (
        NEEDLE not in attempt(template, [system, user]) or attempt(template, [system, system, user]).count(NEEDLE) > 1
    )


def takes_long_ids(template: ChatTemplate) -> bool:
    """Whether `template` takes calls with any id, or none at all."""
    arguments = json.dumps({"x": NEEDLE}) if template.wants_argument_text else {"x": NEEDLE}
    return NEEDLE in called(template, arguments, LONG_PROBE_ID) or NEEDLE not in called(template, arguments)


def called(template: ChatTemplate, arguments: Any, call_id: str = PROBE_ID) -> str:
    call = {"type": "function", "id": call_id, "function": {"name": "f", "arguments": arguments}}
    asked = {"role": "user", "content": "x"}
    return attempt(template, [asked, {"role": "assistant", "content": "", "tool_calls": [call]}])


def attempt(template: ChatTemplate, messages: Sequence[Message]) -> str:
    """Return what becomes of `messages`, "" where the template refuses them."""
    try:
        return template.render(messages, add_generation_prompt=False)
    except InputError:
        return ""
