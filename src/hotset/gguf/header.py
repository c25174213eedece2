"""Reads the header of one GGUF file: version, metadata, and the list of tensors as it stands in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotset.errors import FileError, UnsupportedError
from hotset.gguf.cursor import Cursor
from hotset.gguf.metadata import Metadata, describe
from hotset.gguf.values import read_value

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"GGUF"
MAGIC_BYTES = 32  # what other formats show themselves by
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 1 << 20
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 17  # Kimi K2 has 1,100; files with one tensor per expert reach 70,000
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 63  # ggml keeps names in 64 bytes with a NUL at the end
MAX_DIMENSIONS = 4
MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # length, key, type, value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length, name, number of dimensions, dimension, type, offset

# What else is found under the name of a model, by its first bytes.
NOT_GGUF: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself", "run `git lfs pull` to fetch the model"),
    (b"<", "an HTML or XML page", "download the file itself (on Hugging Face: /resolve/ in the link, not /blob/)"),
    (b"{", "JSON text", "look inside: it may be the error message of a download"),
    (b"PK\x03\x04", "a ZIP archive or PyTorch checkpoint", "unpack it, or convert it to GGUF"),
    (b"\x80", "a Python pickle", "convert the model to GGUF"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", "unpack it first"),
    (b"tjgg", "GGJT, a format of llama.cpp before GGUF", "download a GGUF file of the model"),
    (b"fmgg", "GGMF, a format of llama.cpp before GGUF", "download a GGUF file of the model"),
    (b"lmgg", "GGML, a format of llama.cpp before GGUF", "download a GGUF file of the model"),
    (b"\x00\x00\x00\x00", "zeros at its start", "the download did not finish: download the file again"),
)


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the header lists it: dimensions fastest first, `offset` from the start of the data."""

    name: str
    dimensions: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    metadata: Metadata
    tensors: tuple[RawTensor, ...]
    alignment: int
    data_start: int


def read_header(cursor: Cursor) -> Header:
    """Read and check everything before the tensor data; `cursor` stands at the start of the file."""
    cursor.reach(min(MAGIC_BYTES, cursor.end))
    check_magic(cursor.path, bytes(cursor.data[:MAGIC_BYTES]))
    cursor.skip(len(MAGIC), "magic")
    version = _read_version(cursor)
    # The two counts stand side by side, so each is checked against all that follows.
    n_tensors = cursor.count("tensor count", MIN_TENSOR_BYTES, MAX_TENSORS)
    n_pairs = cursor.count("metadata count", MIN_PAIR_BYTES, MAX_PAIRS)
    metadata = _read_metadata(cursor, n_pairs)
    tensors = _read_tensors(cursor, n_tensors)
    alignment = _alignment(metadata)
    return Header(version, metadata, tensors, alignment, align(cursor.position, alignment))


def align(position: int, alignment: int) -> int:
    """`position` rounded up to a multiple of `alignment`."""
    return -(-position // alignment) * alignment


def check_magic(path: Path, head: bytes) -> None:
    if head.startswith(MAGIC):
        return
    if head[8:10] == b'{"':
        raise FileError(path, "file", "is a safetensors file, not GGUF", value=head[:4], hint="convert it to GGUF")
    for start, what, hint in NOT_GGUF:
        if head.lstrip().startswith(start):
            raise FileError(path, "file", f"is no GGUF file: it holds {what}", value=head[:4], hint=hint)
    raise FileError(path, "file", f"is no GGUF file: it starts with {head[:4]!r}, not b'GGUF'", value=head[:4])


def _read_version(cursor: Cursor) -> int:
    version = cursor.u32("version")
    if version in (2, 3):
        return version
    if version < 2:
        problem, hint = f"is {version}, too old: versions 2 and 3 are read", "download or convert the model again"
    elif version & 0xFFFF == 0:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        problem = f"is {version}: a big-endian file of version {swapped}"
        hint = "download or convert a little-endian file"
    else:
        problem = f"is {version}: versions 2 and 3 are read"
        hint = "update hotset if the file is sound, else download it again"
    raise UnsupportedError(cursor.path, "version", problem, value=version, hint=hint)


def _read_metadata(cursor: Cursor, n_pairs: int) -> Metadata:
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    starts: dict[str, int] = {}
    for index in range(n_pairs):
        start = cursor.position
        key = _read_key(cursor, f"metadata key {index + 1} of {n_pairs:,}")
        if key in starts:
            places = f"at bytes {starts[key]:,} and {start:,}"
            raise FileError(cursor.path, key, f"metadata key stands twice, {places}", value=key)
        starts[key] = start
        types[key], values[key] = read_value(cursor, key)
    return Metadata(cursor.path, values, types)


def _read_key(cursor: Cursor, thing: str) -> str:
    raw = cursor.string(thing, MAX_KEY_BYTES)
    if not raw or not all(0x20 <= byte < 0x7F for byte in raw):
        raise FileError(cursor.path, thing, f"is {describe(raw)}; keys are printable ASCII", value=raw)
    return raw.decode("ascii")


def _read_tensors(cursor: Cursor, n_tensors: int) -> tuple[RawTensor, ...]:
    starts: dict[str, int] = {}
    tensors = []
    for index in range(n_tensors):
        start = cursor.position
        tensor = _read_tensor(cursor, f"name of tensor {index + 1} of {n_tensors:,}")
        if tensor.name in starts:
            places = f"at bytes {starts[tensor.name]:,} and {start:,} of the header"
            raise FileError(cursor.path, tensor.name, f"tensor stands twice, {places}", value=tensor.name)
        starts[tensor.name] = start
        tensors.append(tensor)
    return tuple(tensors)


def _read_tensor(cursor: Cursor, thing: str) -> RawTensor:
    name = _read_name(cursor, thing)
    n_dimensions = cursor.u32(name)
    if not 1 <= n_dimensions <= MAX_DIMENSIONS:
        raise FileError(
            cursor.path, name, f"has {n_dimensions:,} dimensions; 1 to {MAX_DIMENSIONS} are allowed", value=n_dimensions
        )
    dimensions = tuple(cursor.u64(name) for _ in range(n_dimensions))
    return RawTensor(name, dimensions, cursor.u32(name), cursor.u64(name))


def _read_name(cursor: Cursor, thing: str) -> str:
    raw = cursor.string(thing, MAX_KEY_BYTES)
    name = raw.decode("utf-8", "replace")
    if not 1 <= len(raw) <= MAX_NAME_BYTES or not name.isprintable() or "\N{REPLACEMENT CHARACTER}" in name:
        problem = f"is {describe(raw)} ({len(raw):,} bytes); names are printable UTF-8 of 1 to {MAX_NAME_BYTES} bytes"
        raise FileError(cursor.path, thing, problem, value=raw)
    return name


def _alignment(metadata: Metadata) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    value, kind = metadata[key], metadata.type_of(key)
    if kind != "u32" or value & (value - 1) or not MIN_ALIGNMENT <= value <= MAX_ALIGNMENT:
        problem = (
            f"is {describe(value)} ({kind}); a u32 power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT:,} is allowed"
        )
        raise FileError(metadata.path, key, problem, value=value)
    return int(value)
