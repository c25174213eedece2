"""Keeps what a user wrote from becoming control tokens when a chat template weaves it into a prompt.

Before rendering, `Marks.hide` puts a private-use character in the place of one character of every control token spelled out in a
message; after rendering and cutting out the control tokens that the template wrote, the table `Marks.table` puts it back.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

PRIVATE_USE = range(0xF0000, 0xFFFFE)
_PRIVATE_USE_TEXT = re.compile("[\U000f0000-\U000ffffd]")
_SYMBOL = re.compile(r"\W")


class ControlTexts:
    """The spellings of control tokens, arranged for finding them, or parts of them, in text."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._spellings = frozenset(spellings)
        self._longest = max(map(len, self._spellings), default=0)
        self._lengths: dict[str, set[int]] = defaultdict(set)
        for spelling in self._spellings:
            self._lengths[spelling[0]].add(len(spelling))
        # Parts that are plain words are left alone: templates compare them (roles), and no template adds the rest of the token.
        cuts = [(s[:n], s[n:]) for s in self._spellings for n in range(1, len(s))]
        self._heads = {head for head, _ in cuts if _SYMBOL.search(head)}
        self._tails = {tail for _, tail in cuts if _SYMBOL.search(tail)}
        first = "".join(map(re.escape, sorted(self._lengths)))
        self._first = re.compile(f"[{first}]") if first else re.compile(r"(?!)")

    def starts(self, text: str) -> set[int]:
        """Return where `text` must be broken so that no control token can begin in it, end in it or pass through it."""
        found = {match.start() for match in self._first.finditer(text) if self._begins(text, match.start())}
        for length in range(1, min(len(text), self._longest - 1) + 1):
            if text[-length:] in self._heads:
                found.add(len(text) - length)
            if text[:length] in self._tails:
                found.add(0)
        if 0 < len(text) < self._longest and _SYMBOL.search(text) and any(text in s[1:-1] for s in self._spellings):
            found.add(0)
        return found

    def _begins(self, text: str, at: int) -> bool:
        return any(text[at : at + length] in self._spellings for length in self._lengths[text[at]])


class Marks:
    """Replaces characters in the strings of messages by unused private-use characters, and knows the way back."""

    def __init__(self, texts: ControlTexts, *sources: Any) -> None:
        self._texts = texts
        taken = {mark for source in sources for text in strings(source) for mark in _PRIVATE_USE_TEXT.findall(text)}
        self._free = (chr(code) for code in PRIVATE_USE if chr(code) not in taken)
        self._marks: dict[str, str] = {}

    @property
    def table(self) -> dict[int, str]:
        """For `str.translate`: from the marks to what they stand for."""
        return {ord(mark): character for character, mark in self._marks.items()}

    def hide(self, value: Any) -> Any:
        """Return `value` (JSON-like) with every control token in its strings and keys broken; lists and dicts are new."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item) for item in value]
        return value

    def _hide_text(self, text: str) -> str:
        at = self._texts.starts(text)
        if not at:
            return text
        characters = list(text)
        for index in at:
            characters[index] = self._mark(text[index])
        return "".join(characters)

    def _mark(self, character: str) -> str:
        if character not in self._marks:
            self._marks[character] = next(self._free)
        return self._marks[character]


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)
