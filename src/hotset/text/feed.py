"""Reading text that arrives in pieces as if it were whole: parsers are generators that yield what they found, and None where they need more.

A parser decides by what the text says, never by where a piece ended, so that it finds the same in any pieces.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
Kind = Literal["content", "reasoning", "call", "arguments"]


@dataclass(frozen=True)
class Delta:
    """A piece of an answer: text of its content, of its reasoning, or of the arguments (JSON) of call number `index`.

    Of kind "call" it begins call number `index`: `text` is the function's name, `call_id` the id that the model gave it, if any.
    """

    kind: Kind
    text: str
    index: int = 0
    call_id: str = ""


Steps = Generator[Delta | None, None, T]


class Feed:
    """Text that was pushed and not yet read; `ended` says that no more comes."""

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._mark: int | None = None

    @property
    def text(self) -> str:
        """What is not yet read."""
        return self._text[self._at :]

    def push(self, text: str) -> None:
        """Add text at the end."""
        if self._mark is None and self._at:
            self._text, self._at = self.text, 0
        self._text += text

    def take(self, n: int) -> str:
        """Read `n` characters."""
        taken = self._text[self._at : self._at + n]
        self._at += len(taken)
        return taken

    def mark(self) -> None:
        """Keep what is read from here on, for `back`."""
        self._mark = self._at

    def unmark(self) -> None:
        """There is no going back any more."""
        self._mark = None

    def back(self) -> None:
        """Unread what was read since `mark`."""
        self._at = self._at if self._mark is None else self._mark
        self._mark = None

    def skip_space(self) -> None:
        """Read the whitespace that is there."""
        self.take(len(self.text) - len(self.text.lstrip()))

    def find(self, markers: Sequence[str], start: int = 0) -> tuple[int, str | None]:
        """Return where the first marker is and which (of several there the longest); without one, how much is certainly before any."""
        begin = self._at + start
        found = [(at, -len(marker), marker) for marker in markers if (at := self._text.find(marker, begin)) >= 0]
        if found:
            at, _, marker = min(found)
            return at - self._at, marker
        rest = self._text[begin:]
        return start + (len(rest) if self.ended else certain(rest, markers)), None


def certain(text: str, markers: Sequence[str]) -> int:
    """Return how much of `text` is no part of a marker that may be on its way."""
    longest = max(map(len, markers), default=1)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(marker.startswith(text[start:]) for marker in markers):
            return start
    return len(text)


def stream(
    feed: Feed, delta: Delta, markers: Sequence[str], *, trim: bool = False, trim_end: bool = False
) -> Steps[tuple[str | None, str]]:
    """Yield text up to a marker as copies of `delta` -> the marker (it is read; None at the end) and the whitespace before it.

    Whitespace before a marker is left out; so is that at the start with `trim`, and that at the end with `trim_end`.
    """
    held, begun = "", not trim
    while True:
        at, marker = feed.find(markers)
        text = held + feed.take(at)
        if not begun:
            text = text.lstrip()
            begun = bool(text)
        body = text.rstrip()
        held = text[len(body) :]
        if body:
            yield Delta(delta.kind, body, delta.index)
        if marker is not None:
            feed.take(len(marker))
            return marker, held
        if feed.ended:
            if held and not trim_end:
                yield Delta(delta.kind, held, delta.index)
            return None, ""
        yield None


def collect(feed: Feed, markers: Sequence[str]) -> Steps[tuple[str, str | None]]:
    """Read up to a marker and the marker -> text and marker; all that is left and None where none comes."""
    scanned = 0
    while True:
        at, marker = feed.find(markers, scanned)
        if marker is not None:
            text = feed.take(at)
            feed.take(len(marker))
            return text, marker
        if feed.ended:
            return feed.take(at), None
        scanned = at
        yield None


def starts_with(feed: Feed, words: Sequence[str]) -> Steps[str | None]:
    """Read whitespace and one of `words` if that is what comes next -> the word; else read nothing -> None."""
    while True:
        text = feed.text.lstrip()
        for word in words:
            if text.startswith(word):
                feed.skip_space()
                return feed.take(len(word))
        if feed.ended or not any(word.startswith(text) for word in words):
            return None
        yield None


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Join neighbours of the same kind: the same for any pieces."""
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if last and delta.kind != "call" and (last.kind, last.index) == (delta.kind, delta.index):
            joined[-1] = Delta(last.kind, last.text + delta.text, last.index)
        else:
            joined.append(delta)
    return joined
