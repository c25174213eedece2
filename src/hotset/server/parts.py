"""The parts of a chat's answer as they come, and put together."""

from __future__ import annotations

import json
from typing import Any, Protocol

from hotset.server.wire import new_id
from hotset.text.feed import Delta


class Parser(Protocol):
    """Takes an answer apart; all pushes and the flush together give the same for any pieces."""

    def push(self, text: str) -> list[Delta]:
        """What more text makes certain."""

    def flush(self) -> list[Delta]:
        """What was held back, as there is no more text."""


class AllContent:
    """An answer of a model without a template: text."""

    def push(self, text: str) -> list[Delta]:
        return [Delta("content", text)] if text else []

    def flush(self) -> list[Delta]:
        return []


class ForcedCall:
    """An answer whose content is one call as JSON, {"name": ..., "arguments": {...}}, because nothing else was allowed."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._content: list[str] = []

    def push(self, text: str) -> list[Delta]:
        return self._take(self._parser.push(text))

    def flush(self) -> list[Delta]:
        found = self._take(self._parser.flush())
        text = "".join(self._content)
        try:
            call = json.loads(text)
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
        except ValueError:  # cut short by the limit of tokens
            return [*found, Delta("content", text)] if text else found
        return [*found, Delta("call", call["name"]), Delta("arguments", arguments)]

    def _take(self, deltas: list[Delta]) -> list[Delta]:
        self._content += [d.text for d in deltas if d.kind == "content"]
        return [d for d in deltas if d.kind != "content"]


class OneCall:
    """An answer of which only the first call counts, as the client takes no more."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[Delta]:
        return self._first(self._parser.push(text))

    def flush(self) -> list[Delta]:
        return self._first(self._parser.flush())

    def _first(self, deltas: list[Delta]) -> list[Delta]:
        return [delta for delta in deltas if delta.index == 0]


class Parts:
    """The parts so far, put together; calls get ids of ours where the model gave none."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[dict[str, str]] = []

    def add(self, delta: Delta) -> None:
        """Take in what comes next."""
        if delta.kind == "content":
            self.content += delta.text
        elif delta.kind == "reasoning":
            self.reasoning += delta.text
        elif delta.kind == "call":
            self.calls.append({"id": delta.call_id or new_id("call"), "name": delta.text, "arguments": ""})
        else:
            self.calls[delta.index]["arguments"] += delta.text

    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls in OpenAI's form."""
        return [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in self.calls
        ]
