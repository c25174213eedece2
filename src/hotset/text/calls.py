"""Tool calls as deltas: numbered, with arguments that are JSON whatever the model wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hotset.text.feed import Delta

NAME = re.compile(r"\s*[\w.:/-]+\s*")
# Python's spelling, which some templates teach.
PYTHON_WORDS = {"True": True, "False": False, "None": None}


class CallWriter:
    """Makes the deltas of one call after the other; `tools` (OpenAI's form) tell text from other values."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._types = {name: types for tool in tools for name, types in parameter_types(tool).items()}
        self._index = -1
        self._name = ""
        self._n_parameters = 0

    def knows(self, name: str) -> bool:
        """Whether one of the tools is named so."""
        return name in self._types

    def begin(self, name: str, call_id: str = "") -> Delta:
        """Begin a call."""
        self._index += 1
        self._name, self._n_parameters = name.strip(), 0
        return Delta("call", self._name, self._index, call_id.strip())

    def arguments(self, text: str = "") -> Delta:
        """Go on with the arguments of this call, as JSON text."""
        return Delta("arguments", text, self._index)

    def parameter(self, key: str, value: str) -> Delta:
        """Add one argument whose value was written as text, or as JSON where it is no text."""
        before = ", " if self._n_parameters else "{"
        self._n_parameters += 1
        typed = typed_value(value, self._types.get(self._name, {}).get(key))
        return self.arguments(f"{before}{as_json(key)}: {as_json(typed)}")

    def end(self) -> Delta:
        """Close the arguments that `parameter` opened."""
        return self.arguments("}" if self._n_parameters else "{}")

    def whole(self, name: str, arguments: Any) -> list[Delta]:
        """A call all at once."""
        return [self.begin(name), self.arguments(as_json(arguments))]


def is_name(text: str) -> bool:
    """Whether `text` can be a function's name."""
    return NAME.fullmatch(text) is not None


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def parameter_types(tool: Mapping[str, Any]) -> dict[str, dict[str, set[str]]]:
    """Return the function's name with the types of its parameters; nothing where the tool is of another form."""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return {}
    schema = function.get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    known = properties if isinstance(properties, Mapping) else {}
    return {function["name"]: {key: types_of(field) for key, field in known.items()}}


def types_of(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows, as far as it says so outright."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type")
    found = {kinds} if isinstance(kinds, str) else {kind for kind in kinds or () if isinstance(kind, str)}
    for choice in (*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())):
        found |= types_of(choice)
    return found


def typed_value(text: str, types: set[str] | None) -> Any:
    """Return the value that `text` stands for: JSON where that is of an allowed type and text is not what was meant."""
    word = text.strip()
    try:
        value = PYTHON_WORDS[word] if word in PYTHON_WORDS else json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not types or "string" not in types:
        return value
    others: dict[str, type] = {"null": type(None), "object": dict, "array": list}
    return value if any(kind in types and isinstance(value, python) for kind, python in others.items()) else text
