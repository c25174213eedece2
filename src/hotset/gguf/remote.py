"""Reads the header of a model behind a URL, with range requests: no more than the header is fetched, and a few bytes behind it.

Arrays of numbers are stepped over: their size follows from their count. The strings of a vocabulary cannot be: each has its length in
front of it and nothing says where the array ends, so the way to the tensors leads through all of them.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hotset.errors import FileError
from hotset.gguf.cursor import Cursor
from hotset.gguf.header import read_header
from hotset.gguf.part import MIN_FILE_BYTES, Part
from hotset.gguf.reader import GGUFFile
from hotset.gguf.split import PART_NAME, check_place, check_tensor_count, part_name, place_in_split
from hotset.gguf.tensors import place_tensors

# A request brings at least so much, twice as much as the one before it; all that is fetched in vain is the rest of the last.
FIRST_BYTES = 16 << 10
MOST_BYTES = 512 << 10
# Shorter arrays of numbers are read: rules of layers are among them.
LEFT_OUT_FROM = 64 << 10
MAX_HEADER_BYTES = 256 << 20
TIMEOUT_S = 30
RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass
class RemoteFile:
    """A file behind a URL. `secret` headers are not sent on where the server points elsewhere; `fetched` counts bytes."""

    url: str
    name: Path
    secret: Mapping[str, str] = field(default_factory=dict)
    fetched: int = 0

    @classmethod
    def at(cls, url: str, secret: Mapping[str, str] | None = None) -> RemoteFile:
        parts = urlsplit(url)
        return cls(url, Path(parts.netloc + unquote(parts.path)), secret or {})

    def sibling(self, file_name: str) -> RemoteFile:
        """The file of another name in the same folder."""
        parts = urlsplit(self.url)
        folder = parts.path.rpartition("/")[0]
        return RemoteFile.at(parts._replace(path=f"{folder}/{file_name}").geturl(), self.secret)

    def read(self, start: int, n: int) -> tuple[bytes, int]:
        """Up to `n` bytes from `start` on, and the size of the whole file. Raises FileError."""
        request = urllib.request.Request(self.url, headers={"Accept-Encoding": "identity"})  # noqa: S310 - http(s), as checked by the caller
        request.add_header("Range", f"bytes={start}-{start + n - 1}")
        for key, value in self.secret.items():
            request.add_unredirected_header(key, value)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310 - the same
                found = RANGE.fullmatch(response.headers.get("Content-Range", ""))
                if response.status != 206 or found is None or int(found[1]) != start:
                    raise self._problem("the server does not send parts of files", "download it and give its path")
                data: bytes = response.read(n)
        except urllib.error.HTTPError as error:
            hint = "check the address; for private or gated models set HF_TOKEN"
            raise self._problem(f"the server answers {error.code} {error.reason}", hint) from error
        except (OSError, HTTPException, ValueError) as error:
            problem = f"cannot be fetched: {str(error) or type(error).__name__}"
            raise self._problem(problem, "check the address and the connection, and run it again") from error
        if not data:
            raise self._problem("the server sends nothing", "run it again, or download it and give its path")
        self.fetched += len(data)
        return data, int(found[3])

    def _problem(self, problem: str, hint: str) -> FileError:
        return FileError(self.name, "file", problem, value=self.url, hint=hint)


class RemoteCursor(Cursor):
    """A cursor over a file that arrives as it is read; what is stepped over stays zero in `data`."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._chunk = FIRST_BYTES
        first, size = file.read(0, FIRST_BYTES)
        self._here = bytearray(first)
        super().__init__(file.name, self._here, size)

    def reach(self, position: int) -> int:
        here = self._here
        if position > MAX_HEADER_BYTES:
            problem = f"its header passes the limit of {MAX_HEADER_BYTES:,} bytes"
            raise FileError(self.path, "file", problem, value=position, hint="download it and give its path")
        if self.position > len(here):  # an array was stepped over
            here.extend(bytes(self.position - len(here)))
            self._chunk = FIRST_BYTES // 2  # another array may follow
        while len(here) < position:
            self._chunk = min(2 * self._chunk, MOST_BYTES)
            n = min(max(self._chunk, position - len(here)), self.end - len(here))
            data, size = self._file.read(len(here), n)
            if size != self.end:
                raise FileError(
                    self.path,
                    "file",
                    f"changed from {self.end:,} to {size:,} bytes while it was read",
                    hint="run it again",
                )
            here.extend(data)
        return len(here)

    def leaves_out(self, n_bytes: int) -> bool:
        return n_bytes >= LEFT_OUT_FROM


def open_remote(files: Sequence[RemoteFile]) -> tuple[GGUFFile, int]:
    """Open a model of which only headers are fetched: one file, or the parts of a split one (one part is enough to find the others).

    Returns it with the number of bytes fetched. Its tensors' bytes cannot be read. Raises FileError.
    """
    first = open_remote_part(files[0])
    index, count = place_in_split(first)
    others = files if len(files) == count else siblings(files[0], index, count)
    parts = tuple(first if i == index else open_remote_part(file) for i, file in enumerate(others))
    if count > 1:
        for i, part in enumerate(parts):
            check_place(part, i, count)
        check_tensor_count(parts)
    return GGUFFile(files[0].name, parts, place_tensors(parts)), sum(file.fetched for file in others)


def open_remote_part(file: RemoteFile) -> Part:
    cursor = RemoteCursor(file)
    if cursor.end < MIN_FILE_BYTES:
        raise FileError(file.name, "file", f"has {cursor.end} bytes, fewer than a GGUF header takes", value=cursor.end)
    return Part(file.name, cursor.end, read_header(cursor))


def siblings(file: RemoteFile, index: int, count: int) -> list[RemoteFile]:
    """All parts of a split model, by the name of one."""
    if count == 1:
        return [file]
    match = PART_NAME.fullmatch(file.name.name)
    if match is None or file.name.name != part_name(match["stem"], index, count):
        problem = f"says that this is part {index + 1} of {count}, but the name does not, so the others cannot be found"
        raise FileError(file.name, "split.no", problem, value=index, hint="give the address under the file's own name")
    return [file if i == index else file.sibling(part_name(match["stem"], i, count)) for i in range(count)]
