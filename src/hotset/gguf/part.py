"""One file of a model, mapped into memory, and its header."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING

from hotset.errors import FileError
from hotset.gguf.cursor import Cursor
from hotset.gguf.header import Header, read_header

if TYPE_CHECKING:
    from pathlib import Path

MIN_FILE_BYTES = 24  # magic, version, two counts


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a model; `data` is None where only the header was read."""

    path: Path
    n_bytes: int
    header: Header
    data: mmap | None = None


def open_part(path: Path) -> Part:
    """Map `path` and read its header."""
    data = _map(path)
    return Part(path, len(data), read_header(Cursor(path, data, len(data))), data)


def damage_hint(path: Path) -> str:
    """Say what to do about a file that is not whole."""
    if re.search(r"\.part\d+of\d+$|-split-[a-z]+$", path.name):
        return "this is a raw piece of a larger file: join all pieces with `cat`, in order, into one .gguf file"
    return "download or convert the file again"


def _map(path: Path) -> mmap:
    try:
        # Asked before opening: to open a pipe would wait for its writer.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise FileError(path, "file", f"is {kind}", hint="give the path of a .gguf file")
        if status.st_size < MIN_FILE_BYTES:
            raise _too_short(path, status.st_size)
        with path.open("rb") as file:
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except FileNotFoundError as error:
        raise FileError(path, "file", "is not there", hint="check the path") from error
    except (OSError, ValueError) as error:
        raise FileError(path, "file", f"cannot be read: {error}", hint="check the path and its permissions") from error


def _too_short(path: Path, size: int) -> FileError:
    problem = "is empty" if size == 0 else f"has {size} bytes, fewer than a GGUF header takes ({MIN_FILE_BYTES})"
    return FileError(path, "file", problem, value=size, hint=damage_hint(path))
