"""A position in a file's header that never passes the end: every size is compared with what remains before it is used."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from hotset.errors import FileError

if TYPE_CHECKING:
    from mmap import mmap
    from pathlib import Path

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class Cursor:
    """Reads little-endian fields of `data` one after another; `thing` names what is read, for the error."""

    def __init__(self, path: Path, data: mmap | bytearray, end: int, position: int = 0) -> None:
        self.path = path
        self.data = data
        self.position = position
        self.end = end

    def reach(self, position: int) -> int:
        """Bring in the bytes up to `position` (at most `end`) where they are not there yet; says up to where bytes can be read."""
        del position  # a mapped file is there as a whole
        return self.end

    def leaves_out(self, n_bytes: int) -> bool:
        """Whether an array of numbers of this size is stepped over and not read."""
        del n_bytes
        return False

    def skip(self, size: int, thing: str) -> int:
        """Step over `size` bytes and return where they start."""
        start = self.position
        if size > self.end - start:
            raise FileError(
                self.path,
                thing,
                f"needs {size:,} bytes at byte {start:,}, but the file ends at byte {self.end:,}: cut off or damaged",
                value=size,
            )
        self.position = start + size
        return start

    def _read(self, size: int, thing: str) -> int:
        if size <= self.end - self.position:
            self.reach(self.position + size)
        return self.skip(size, thing)

    def unpack(self, kind: struct.Struct, thing: str) -> int | float:
        start = self._read(kind.size, thing)
        value: int | float = kind.unpack_from(self.data, start)[0]
        return value

    def u32(self, thing: str) -> int:
        return int(self.unpack(U32, thing))

    def u64(self, thing: str) -> int:
        return int(self.unpack(U64, thing))

    def take(self, size: int, thing: str) -> bytes:
        start = self._read(size, thing)
        return bytes(self.data[start : start + size])

    def string(self, thing: str, max_bytes: int) -> bytes:
        length = self.u64(thing)
        if length > max_bytes:
            raise FileError(
                self.path, thing, f"claims a string of {length:,} bytes, over the limit of {max_bytes:,}", value=length
            )
        return self.take(length, thing)

    def count(self, thing: str, item_bytes: int, max_count: int) -> int:
        """Read a u64 count of items that take at least `item_bytes` each, and check that the file has room for them."""
        count = self.u64(thing)
        room = (self.end - self.position) // item_bytes
        if count > min(room, max_count):
            limit = f"the rest of the file holds at most {room:,}" if count > room else f"the limit is {max_count:,}"
            raise FileError(self.path, thing, f"claims {count:,} items, but {limit}", value=count)
        return count
