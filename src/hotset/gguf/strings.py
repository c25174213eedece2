"""A long array of strings, kept as the file's bytes and decoded where it is used."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from hotset.errors import FileError
from hotset.gguf.cursor import U64, Cursor

# The largest vocabularies have 256,000 entries and half a million merges, about 10 MB.
MAX_STRINGS = 1 << 24
MAX_ARRAY_BYTES = 1 << 28


def decode(raw: bytes) -> str:
    """Decode any bytes: what is no UTF-8 becomes surrogates, so `text.encode("utf-8", "surrogateescape")` gives the bytes back."""
    return raw.decode("utf-8", "surrogateescape")


class StringArray(Sequence[str]):
    """Read-only sequence of strings (see `decode`); `raw(i)` gives the bytes. Its bounds were checked when it was read."""

    def __init__(self, blob: bytes, ends: array[int]) -> None:
        self._blob = blob
        self._ends = ends  # n + 1 entries: string i lies after its 8 bytes of length, from ends[i] + 8 to ends[i + 1]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def raw(self, index: int) -> bytes:
        """Return the bytes of string `index`, counted from 0."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._blob[self._ends[index] + 8 : self._ends[index + 1]]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [decode(self.raw(i)) for i in range(*index.indices(len(self)))]
        return decode(self.raw(index + len(self) if index < 0 else index))

    def __iter__(self) -> Iterator[str]:
        blob, start = self._blob, 0
        for end in self._ends[1:]:
            yield decode(blob[start + 8 : end])
            start = end

    def __repr__(self) -> str:
        return f"StringArray({self[:3]!r}, {len(self):,} strings)"


def string_array(items: Iterable[str]) -> StringArray:
    """Make one of strings in memory, as if read from a file."""
    blob, ends = bytearray(), array("q", [0])
    for item in items:
        raw = item.encode("utf-8", "surrogateescape")
        blob += U64.pack(len(raw)) + raw
        ends.append(len(blob))
    return StringArray(bytes(blob), ends)


def read_strings(cursor: Cursor, thing: str) -> StringArray:
    count = cursor.count(thing, item_bytes=8, max_count=MAX_STRINGS)
    data, base, end, unpack = cursor.data, cursor.position, cursor.end, U64.unpack_from
    have = cursor.reach(base)
    # One tight loop on local names: 300,000 tokens and merges take 60 ms.
    position, ends = base, array("q", [0])
    for index in range(count):
        if have - position < 8:
            have = cursor.reach(min(position + 8, end))
        length = unpack(data, position)[0] if end - position >= 8 else 0
        position += 8 + length
        if position > end:
            raise FileError(
                cursor.path,
                thing,
                f"string {index:,} of {count:,} claims {length:,} bytes and passes the end of the file: cut off or damaged",
                value=length,
            )
        ends.append(position - base)
    if position - base > MAX_ARRAY_BYTES:
        raise FileError(
            cursor.path, thing, f"takes {position - base:,} bytes, over the limit of {MAX_ARRAY_BYTES:,}", value=count
        )
    return StringArray(cursor.take(position - base, thing), ends)
