"""Text that arrives token by token: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from hotset.config import MAX_STOP_LENGTH
from hotset.errors import InputError
from hotset.text.tokenizer import TokenBytes, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Detokenizer:
    """Turns ids into text one by one; all pushes and the flush together give `tokenizer.decode(ids, special=special)`.

    Bytes of an unfinished character are held back, and become U+FFFD once it is certain that they are none. `continues` says that
    the ids go on with a text (an answer to a prompt that ends in text), so that a space in front is theirs and is kept.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = True, continues: bool = False) -> None:
        self._bytes = TokenBytes(tokenizer, special=special, continues=continues)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, index: int) -> str:
        """Return the text that token `index` completes."""
        return self._decoder.decode(self._bytes.push(index))

    def flush(self) -> str:
        """Return what was held back; the next push begins a new character."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Finds the first of some stop strings in text that arrives in pieces, whatever the pieces.

    That is the one that is complete first, kept in `met`. What might be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        for stop in self._stops:
            check_stop(stop)
        self._held = ""
        self.met: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that may go out, and whether a stop string was met; after that nothing goes out."""
        if self.met is not None:
            return "", True
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            cut, self.met = match
            self._held = ""
            return text[:cut], True
        held_from = self._held_from(text)
        self._held = text[held_from:]
        return text[:held_from], False

    def flush(self) -> str:
        """Return what was held back, as the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        starts = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(starts)[1:] if starts else None

    def _held_from(self, text: str) -> int:
        longest = max(map(len, self._stops), default=1)
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)


def check_stop(stop: str) -> None:
    if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_LENGTH:
        shown = f"of {len(stop):,} characters" if isinstance(stop, str) else f"{stop!r}"
        raise InputError(f"stop string {shown}: a stop string must be text of 1 to {MAX_STOP_LENGTH:,} characters")


def stop_token_ids(tokenizer: Tokenizer, stops: Sequence[str]) -> frozenset[int]:
    """Return the ids of stop strings that spell a control token: such a token has no text to compare, so it stops by id."""
    return tokenizer.special_ids & {tokenizer.id_of(stop) for stop in stops}
