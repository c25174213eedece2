"""Opens a GGUF model, in one file or split, and hands out its metadata and its tensors' bytes without a copy."""

from __future__ import annotations

import hashlib
from mmap import MADV_DONTNEED, MADV_WILLNEED, PAGESIZE, mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from hotset.errors import FileError
from hotset.gguf.split import open_parts
from hotset.gguf.tensors import TensorInfo, place_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from hotset.gguf.metadata import Metadata
    from hotset.gguf.part import Part

__all__ = ["GGUFFile", "TensorInfo", "open_gguf"]


def open_gguf(path: str | PathLike[str]) -> GGUFFile:
    """Open a GGUF file (version 2 or 3, little-endian); of a split model any part may be given.

    Everything in the header is checked here, and every tensor lies inside its file. Raises `hotset.errors.FileError`.
    """
    parts = open_parts(Path(path))
    return GGUFFile(Path(path), parts, place_tensors(parts))


class GGUFFile:
    """An open model file: `metadata`, and `tensors` by name in file order. Close it, or use it in a `with` statement."""

    def __init__(self, path: Path, parts: tuple[Part, ...], tensors: dict[str, TensorInfo]) -> None:
        self.path = path
        self.parts: tuple[Path, ...] = tuple(part.path for part in parts)
        self.version: int = parts[0].header.version
        self.metadata: Metadata = parts[0].header.metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self.file_bytes: int = sum(part.n_bytes for part in parts)
        self._maps = tuple(part.data for part in parts if part.data is not None)
        self._header_ends = tuple(part.header.data_start for part in parts)

    @property
    def header_hash(self) -> str:
        """SHA-256 of every part's size and header: tells models apart without reading their tensors."""
        digest = hashlib.sha256()
        for data, end in zip(self._maps, self._header_ends, strict=True):
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data[:end])
        return digest.hexdigest()

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    def tensor(self, name: str) -> TensorInfo:
        """`tensors[name]`, with an error that names the file."""
        if name not in self.tensors:
            hint = "the file is incomplete or of another architecture; download or convert it again"
            raise FileError(self.path, name, "tensor is missing", value=name, hint=hint)
        return self.tensors[name]

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the tensor's bytes: a read-only view of the mapped file, no copy."""
        tensor = self.tensor(name)
        return np.frombuffer(self._map_of(tensor), np.uint8, tensor.n_bytes, tensor.offset)

    def read_ahead(self, name: str) -> None:
        """Let the system begin to read this tensor's pages, in pieces larger than those it would read as they are touched."""
        tensor = self.tensor(name)
        start = tensor.offset // PAGESIZE * PAGESIZE
        self._map_of(tensor).madvise(MADV_WILLNEED, start, tensor.offset + tensor.n_bytes - start)

    def let_go(self, name: str) -> None:
        """Let the system drop this tensor's pages from the process, once its bytes were copied; a later read fetches them again."""
        tensor = self.tensor(name)
        # Whole pages only: the first and the last may hold a neighbour's bytes too.
        start = -(-tensor.offset // PAGESIZE) * PAGESIZE
        end = (tensor.offset + tensor.n_bytes) // PAGESIZE * PAGESIZE
        if end > start:
            self._map_of(tensor).madvise(MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Let go of the files. Views from `data` stay valid: the mapping goes with the last of them."""
        self._maps = ()

    def _map_of(self, tensor: TensorInfo) -> mmap:
        if not self._maps:
            raise ValueError(
                f"{tensor.name} of {self.path} cannot be read: the file was closed, or only its header was opened"
            )
        return self._maps[tensor.part]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
