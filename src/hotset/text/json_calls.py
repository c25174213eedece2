"""Calls that are JSON objects with a name and arguments, read while they arrive."""

from __future__ import annotations

import json
from typing import Any

from hotset.text.calls import CallWriter, as_json, is_name
from hotset.text.feed import Feed, Steps, starts_with

NAMES = ("name", "function")
ARGUMENTS = ("arguments", "parameters")
KEYS = (*NAMES, *ARGUMENTS, "type", "id")
SPACE = " \t\r\n"


class ValueScanner:
    """Finds the end of a JSON value, fed piece by piece from its first character."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._escaped = False
        self._begun = False

    def end(self, text: str) -> int | None:
        """Return how many characters of this piece belong to the value, None if all do and it goes on."""
        for n, character in enumerate(text):
            if self._in_text:
                self._read_text(character)
            elif character == '"':
                self._in_text = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                if self._depth == 0:
                    return n
                self._depth -= 1
            elif self._depth == 0 and self._begun and (character == "," or character in SPACE):
                return n
            self._begun = True
            if self._depth == 0 and not self._in_text and character in '}]"':
                return n + 1
        return None

    def _read_text(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_text = False


def json_call(feed: Feed, writer: CallWriter, *, known: bool = False) -> Steps[bool]:
    """Read an object with a name and arguments, in any order -> whether it was a call; if not, nothing was read.

    With `known` only a call of one of the tools is one.
    """
    feed.mark()
    if not (yield from starts_with(feed, ["{"])):
        feed.back()
        return False
    named = yield from _members(feed, writer, known=known)
    if not named:
        feed.back()
    return named


def _members(feed: Feed, writer: CallWriter, *, known: bool) -> Steps[bool]:
    named, written, waiting = False, False, ""
    while not (yield from starts_with(feed, ["}"])):
        yield from starts_with(feed, [","])
        key = loaded((yield from read_value(feed)))
        if key not in KEYS or (yield from starts_with(feed, [":"])) is None:
            return named
        if key in ARGUMENTS and named:
            yield from stream_arguments(feed, writer)
            written = True
            continue
        text = yield from read_value(feed)
        value = loaded(text)
        if key in ARGUMENTS:
            waiting = value if isinstance(value, str) else text
        elif key in NAMES and not named:
            if not isinstance(value, str) or not is_name(value) or (known and not writer.knows(value)):
                return False
            feed.unmark()
            named, written = True, bool(waiting)
            yield writer.begin(value)
            if waiting:
                yield writer.arguments(waiting)
    if named and not written:
        yield writer.arguments("{}")
    return named


def stream_arguments(feed: Feed, writer: CallWriter) -> Steps[None]:
    """Yield a JSON value as arguments; one that is text holds JSON in it."""
    yield from skip_space(feed)
    if feed.text.startswith('"'):
        value = loaded((yield from read_value(feed)))
        yield writer.arguments(value if isinstance(value, str) else "{}")
        return
    scanner = ValueScanner()
    while True:
        end = scanner.end(feed.text)
        text = feed.take(len(feed.text) if end is None else end)
        if text:
            yield writer.arguments(text)
        if end is not None or feed.ended:
            return
        yield None


def read_value(feed: Feed) -> Steps[str]:
    """Read whitespace and one JSON value -> its text, cut off where the text ends."""
    yield from skip_space(feed)
    scanner, text = ValueScanner(), ""
    while True:
        end = scanner.end(feed.text)
        text += feed.take(len(feed.text) if end is None else end)
        if end is not None or feed.ended:
            return text
        yield None


def skip_space(feed: Feed) -> Steps[None]:
    feed.skip_space()
    while not feed.text and not feed.ended:
        yield None
        feed.skip_space()


def loaded(text: str) -> Any:
    """Return what JSON text says, None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def call_of(value: Any, writer: CallWriter) -> list[Any]:
    """Return the deltas of a call that is an object already, none where it is no call."""
    if not isinstance(value, dict):
        return []
    name = next((value[key] for key in NAMES if isinstance(value.get(key), str)), None)
    arguments: Any = next((value[key] for key in ARGUMENTS if key in value), {})
    if name is None:
        return []
    return [writer.begin(name), writer.arguments(arguments if isinstance(arguments, str) else as_json(arguments))]
