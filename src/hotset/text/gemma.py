"""Gemma 4's calls: call:name{key:value,...}, JSON but for keys without quotes and text between <|"|> marks."""

from __future__ import annotations

import re
from typing import Any

from hotset.text.calls import CallWriter, typed_value
from hotset.text.feed import Feed, Steps, collect

QUOTE = '<|"|>'
END = "<tool_call|>"
HEAD = re.compile(r"\s*call:\s*([^\s{]+)\s*(?=\{)")
WORD = re.compile(r"[^,:\[\]{}]+")
MAX_DEPTH = 64


def gemma_call(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """Read a call whole, as its text can only be turned into JSON then."""
    feed.mark()
    text, end = yield from collect(feed, [END])
    head = HEAD.match(text)
    try:
        arguments = Notation(text, head.end()).whole() if head and end else None
    except ValueError:
        arguments = None
    if head is None or not isinstance(arguments, dict):
        feed.back()
        return False
    feed.unmark()
    yield from writer.whole(head[1], arguments)
    return True


class Notation:
    """Reads a value from `text`, beginning at `at`; ValueError where there is none."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at

    def whole(self) -> Any:
        """Return the value, behind which nothing may stand."""
        value = self._value(0)
        if self._text[self._at :].strip():
            raise ValueError("something stands behind the value")
        return value

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        self._skip_space()
        if self._read(QUOTE):
            return self._up_to_quote()
        if self._read("{"):
            return dict(self._items("}", lambda: self._pair(depth)))
        if self._read("["):
            return self._items("]", lambda: self._value(depth + 1))
        return typed_value(self._word(), None)

    def _pair(self, depth: int) -> tuple[str, Any]:
        self._skip_space()
        key = self._up_to_quote() if self._read(QUOTE) else self._word().strip('"')
        self._expect(":")
        return key, self._value(depth + 1)

    def _items(self, close: str, read: Any) -> list[Any]:
        items: list[Any] = []
        while not self._read(close):
            if items:
                self._expect(",")
            items.append(read())
            self._skip_space()
        return items

    def _word(self) -> str:
        match = WORD.match(self._text, self._at)
        if match is None or not match[0].strip():
            raise ValueError("a value is missing")
        self._at = match.end()
        return match[0].strip()

    def _up_to_quote(self) -> str:
        end = self._text.find(QUOTE, self._at)
        if end < 0:
            raise ValueError("text has no end")
        text, self._at = self._text[self._at : end], end + len(QUOTE)
        return text

    def _skip_space(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _read(self, token: str) -> bool:
        found = self._text.startswith(token, self._at)
        self._at += len(token) if found else 0
        return found

    def _expect(self, token: str) -> None:
        self._skip_space()
        if not self._read(token):
            raise ValueError(f"{token} is missing")
