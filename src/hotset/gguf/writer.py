"""Writes GGUF files, whole or split; tensor data may be produced chunk by chunk, so files larger than memory can be written."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from hotset.errors import InputError
from hotset.gguf.cursor import U32, U64
from hotset.gguf.header import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_DIMENSIONS,
    MAX_NAME_BYTES,
    MIN_ALIGNMENT,
    align,
)
from hotset.gguf.split import MAX_PARTS, part_name
from hotset.gguf.types import GGML_TYPES, TYPES_BY_NAME, GGMLType
from hotset.gguf.values import pack_string, pack_value

Chunk: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]
TensorData: TypeAlias = Chunk | Iterable[Chunk] | Callable[[], Iterable[Chunk]]

# Types that are plain numbers; arrays of such numbers are converted, all other data is bytes of blocks.
NUMBERS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
    "I8": np.dtype("<i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    data: TensorData
    ggml_type: GGMLType
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.ggml_type.row_bytes(self.shape[-1])


class GGUFWriter:
    """Collects metadata and tensors; `write()` puts them into `path`, or into `split` files named after it."""

    def __init__(
        self,
        path: str | PathLike[str],
        architecture: str | None = None,
        alignment: int = DEFAULT_ALIGNMENT,
        *,
        version: int = 3,
        split: int = 1,
    ) -> None:
        if alignment & (alignment - 1) or not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT:
            limits = f"a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT:,}"
            raise InputError(f"alignment is {alignment:,}; give {limits}")
        if version not in (2, 3):
            raise InputError(f"version is {version}; give 2 or 3")
        if not 1 <= split <= MAX_PARTS:
            raise InputError(f"split is {split:,}; give 1 to {MAX_PARTS:,} parts")
        self.path = Path(path)
        self.alignment = alignment
        self.version = version
        self.split = split
        self._pairs: dict[str, bytes] = {}
        self._tensors: dict[str, _Tensor] = {}
        if architecture is not None:
            self.metadata("general.architecture", architecture)

    def metadata(self, key: str, value: Any, type: str | None = None) -> None:  # noqa: A002
        """Add a pair. `type` ("u8" ... "f64", "bool", "str"; of an array its elements') is chosen by the value if None."""
        if key in self._pairs:
            raise InputError(f"metadata key {key!r} was given before; give each key once")
        if key == "general.alignment" or key.startswith("split."):
            raise InputError(
                f"metadata key {key!r} is written by the writer itself; use its arguments alignment and split"
            )
        if not key.isascii() or not key.isprintable() or not key:
            raise InputError(f"metadata key {key!r} is not printable ASCII")
        self._pairs[key] = pack_value(key, value, type)

    def tensor(
        self,
        name: str,
        data: TensorData,
        ggml_type: GGMLType | str | int = "F32",
        shape: Sequence[int] | None = None,
    ) -> None:
        """Add a tensor of `shape` (NumPy order), by default the shape of `data`.

        `data` is an array of numbers for the plain types (F32, F16, F64, I8 ...), else bytes of blocks; or chunks of either; or a
        callable that returns chunks, called when the file is written.
        """
        if shape is None:
            if not isinstance(data, np.ndarray):
                raise InputError(f"tensor {name!r} needs a shape, as its data is not an array")
            shape = data.shape
        tensor = _Tensor(name, data, _type(ggml_type), tuple(int(size) for size in shape))
        _check_tensor(tensor)
        if name in self._tensors:
            raise InputError(f"tensor {name!r} was given before; give each name once")
        self._tensors[name] = tensor

    def write(self) -> tuple[Path, ...]:
        """Write all files and return their paths. They take their names when all are complete; on an error none is left."""
        groups = self._groups()
        paths = self._paths()
        temporary = [path.with_name(f".{path.name}.{os.getpid()}.unfinished") for path in paths]
        with ExitStack() as cleanup:
            for index, (path, tensors) in enumerate(zip(temporary, groups, strict=True)):
                with path.open("xb") as file:
                    cleanup.callback(path.unlink, missing_ok=True)
                    self._write_part(file, index, tensors)
            for unfinished, path in zip(temporary, paths, strict=True):
                unfinished.replace(path)
        return paths

    def _paths(self) -> tuple[Path, ...]:
        if self.split == 1:
            return (self.path,)
        stem = self.path.name.removesuffix(".gguf")
        return tuple(self.path.with_name(part_name(stem, index, self.split)) for index in range(self.split))

    def _groups(self) -> list[list[_Tensor]]:
        """Deal out the tensors to the parts: in order, about as many bytes in each."""
        groups: list[list[_Tensor]] = [[] for _ in range(self.split)]
        total = sum(tensor.n_bytes for tensor in self._tensors.values())
        before = 0
        for tensor in self._tensors.values():
            groups[before * self.split // total].append(tensor)
            before += tensor.n_bytes
        return groups

    def _write_part(self, file: BinaryIO, index: int, tensors: list[_Tensor]) -> None:
        file.write(self._header(index, tensors))
        for tensor in tensors:
            _pad(file, self.alignment)
            _write_data(file, tensor)
        _pad(file, self.alignment)

    def _header(self, index: int, tensors: list[_Tensor]) -> bytes:
        pairs = self._part_pairs(index)
        header = [MAGIC, U32.pack(self.version), U64.pack(len(tensors)), U64.pack(len(pairs))]
        header += [pack_string(key) + value for key, value in pairs.items()]
        offset = 0
        for tensor in tensors:
            header += [pack_string(tensor.name), U32.pack(len(tensor.shape)), *map(U64.pack, reversed(tensor.shape))]
            header += [U32.pack(tensor.ggml_type.id), U64.pack(offset)]
            offset = align(offset + tensor.n_bytes, self.alignment)
        return b"".join(header)

    def _part_pairs(self, index: int) -> dict[str, bytes]:
        """Return what a part's metadata is: the first part of a split holds all, the others only their place."""
        pairs = dict(self._pairs) if index == 0 else {}
        if self.alignment != DEFAULT_ALIGNMENT:
            pairs["general.alignment"] = pack_value("general.alignment", self.alignment, "u32")
        if self.split > 1:
            pairs["split.no"] = pack_value("split.no", index, "u16")
            pairs["split.count"] = pack_value("split.count", self.split, "u16")
            pairs["split.tensors.count"] = pack_value("split.tensors.count", len(self._tensors), "i32")
        return pairs


def _type(ggml_type: GGMLType | str | int) -> GGMLType:
    if isinstance(ggml_type, GGMLType):
        return ggml_type
    found = TYPES_BY_NAME.get(ggml_type) if isinstance(ggml_type, str) else GGML_TYPES.get(ggml_type)
    if found is None:
        raise InputError(f"ggml type {ggml_type!r} is unknown; give one of {', '.join(TYPES_BY_NAME)}, or its id")
    return found


def _check_tensor(tensor: _Tensor) -> None:
    name, shape, block = tensor.name, tensor.shape, tensor.ggml_type.block
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES or not name.isprintable():
        raise InputError(f"tensor name {name!r} is not printable text of 1 to {MAX_NAME_BYTES} bytes")
    if not 1 <= len(shape) <= MAX_DIMENSIONS or min(shape) < 1:
        raise InputError(f"tensor {name!r} has shape {shape}; give 1 to {MAX_DIMENSIONS} dimensions of at least 1")
    if shape[-1] % block:
        raise InputError(f"tensor {name!r} has {shape[-1]} columns of {tensor.ggml_type}; give a multiple of {block}")


def _write_data(file: BinaryIO, tensor: _Tensor) -> None:
    written = 0
    for chunk in _chunks(tensor.data):
        raw = _raw_bytes(tensor, chunk)
        written += raw.nbytes
        if written > tensor.n_bytes:
            break
        file.write(raw)
    if written != tensor.n_bytes:
        found = f"{written:,}" if written < tensor.n_bytes else "more"
        raise InputError(
            f"tensor {tensor.name!r} of shape {tensor.shape} in {tensor.ggml_type} takes {tensor.n_bytes:,} bytes, {found} were given"
        )


def _chunks(data: TensorData) -> Iterator[Chunk]:
    found = data() if callable(data) else data
    if isinstance(found, (bytes, bytearray, memoryview, np.ndarray)):
        yield found
    else:
        yield from found


def _raw_bytes(tensor: _Tensor, chunk: Chunk) -> memoryview:
    if not isinstance(chunk, np.ndarray):
        return memoryview(chunk).cast("B")
    if chunk.dtype == np.uint8:
        return np.ascontiguousarray(chunk).reshape(-1).data
    wanted = NUMBERS.get(tensor.ggml_type.name)
    if wanted is None or wanted.kind != chunk.dtype.kind or (wanted.kind == "i" and wanted != chunk.dtype):
        raise InputError(
            f"tensor {tensor.name!r} is {tensor.ggml_type}, but its data is an array of {chunk.dtype}; "
            f"give {'bytes of blocks as uint8' if wanted is None else wanted}"
        )
    return np.ascontiguousarray(chunk, wanted).reshape(-1).view(np.uint8).data


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))
