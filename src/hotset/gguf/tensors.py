"""Places the tensors of a header in the file: types, shapes, sizes and offsets, each checked."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hotset.errors import FileError, UnsupportedError
from hotset.gguf.header import MAGIC, RawTensor, align
from hotset.gguf.part import Part, damage_hint
from hotset.gguf.types import GGML_TYPES, REMOVED_TYPES, GGMLType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_ELEMENTS = 1 << 62


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it holds; `shape` in NumPy order: slowest dimension first, the last is contiguous."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    n_bytes: int
    part: int
    offset: int  # from the start of the file of that part

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the last dimension."""
        return self.ggml_type.row_bytes(self.shape[-1])

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])


def place_tensors(parts: Sequence[Part]) -> dict[str, TensorInfo]:
    """All tensors of all parts, in file order; raises where one of them cannot be read in full."""
    _check_types(parts)
    placed: dict[str, TensorInfo] = {}
    for index, part in enumerate(parts):
        tensors = [_place(part, index, raw) for raw in part.header.tensors]
        _check_overlap(part, tensors)
        for tensor in tensors:
            if tensor.name in placed:
                first = parts[placed[tensor.name].part].path.name
                problem = f"tensor stands twice, in {first} and in {part.path.name}"
                raise FileError(part.path, tensor.name, problem, value=tensor.name)
            placed[tensor.name] = tensor
    return placed


def check_not_joined(part: Part) -> None:
    """Parts put together with `cat` show as a second GGUF header behind the data of the first."""
    header = part.header
    known = [raw for raw in header.tensors if raw.type_id in GGML_TYPES]
    end = max((header.data_start + raw.offset + _n_bytes(raw) for raw in known), default=header.data_start)
    for start in (end, align(end, header.alignment)):
        if part.data is not None and part.data[start : start + len(MAGIC)] == MAGIC:
            raise FileError(
                part.path,
                "file",
                f"holds a second GGUF file at byte {start:,}: parts of a model were joined with `cat`",
                value=start,
                hint="keep the parts as they were downloaded, or join them with `gguf-split --merge`",
            )


def _n_bytes(raw: RawTensor) -> int:
    kind = GGML_TYPES[raw.type_id]
    return kind.row_bytes(raw.dimensions[0]) * math.prod(raw.dimensions[1:])


def _check_types(parts: Iterable[Part]) -> None:
    names: dict[int, list[str]] = defaultdict(list)
    guilty = None
    for part in parts:
        for raw in part.header.tensors:
            if raw.type_id not in GGML_TYPES:
                names[raw.type_id].append(raw.name)
                guilty = guilty or part.path
    if guilty is None:
        return
    hint = "update hotset, or take a file with another quantisation"
    if 4 in names:  # Ollama gave this long-removed id to its own MXFP4
        hint += " (files of Ollama use ids of their own: take the file from the model's page instead)"
    problem = "; ".join(_type_problem(type_id, names[type_id]) for type_id in sorted(names))
    raise UnsupportedError(guilty, "tensor types", problem, value=dict(names), hint=hint)


def _type_problem(type_id: int, names: list[str]) -> str:
    subject = f"tensor {names[0]} has" if len(names) == 1 else f"tensors {', '.join(names)} have"
    if type_id in REMOVED_TYPES:
        return f"{subject} ggml type {type_id} ({REMOVED_TYPES[type_id]}), removed from GGUF"
    return f"{subject} ggml type {type_id}, unknown to this build"


def _place(part: Part, index: int, raw: RawTensor) -> TensorInfo:
    kind = GGML_TYPES[raw.type_id]
    columns = raw.dimensions[0]
    if 0 in raw.dimensions:
        raise _tensor_error(part, raw, f"has shape {_shape_text(raw)}: no dimension may be 0", raw.dimensions)
    if math.prod(raw.dimensions) > MAX_ELEMENTS:
        raise _tensor_error(part, raw, f"has shape {_shape_text(raw)}: too many elements", raw.dimensions)
    if columns % kind.block:
        problem = f"has {columns:,} columns of {kind}, not a multiple of its block of {kind.block}"
        raise _tensor_error(part, raw, problem, columns)
    if raw.offset % part.header.alignment:
        problem = f"starts at offset {raw.offset:,}, not a multiple of the alignment {part.header.alignment:,}"
        raise _tensor_error(part, raw, problem, raw.offset)
    start, n_bytes = part.header.data_start + raw.offset, _n_bytes(raw)
    if start + n_bytes > part.n_bytes:
        problem = f"takes bytes {start:,} to {start + n_bytes:,}, but the file ends at {part.n_bytes:,}: it is cut off"
        raise FileError(part.path, raw.name, problem, value=raw.offset, hint=damage_hint(part.path))
    return TensorInfo(raw.name, raw.dimensions[::-1], kind, n_bytes, index, start)


def _check_overlap(part: Part, tensors: Iterable[TensorInfo]) -> None:
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.n_bytes > after.offset:
            raise FileError(
                part.path,
                after.name,
                f"starts at byte {after.offset:,}, inside tensor {before.name}, "
                f"which takes bytes {before.offset:,} to {before.offset + before.n_bytes:,}",
                value=after.offset,
            )


def _tensor_error(part: Part, raw: RawTensor, problem: str, value: object) -> FileError:
    return FileError(part.path, raw.name, problem, value=value)


def _shape_text(raw: RawTensor) -> str:
    return "[" + ", ".join(f"{size:,}" for size in reversed(raw.dimensions)) + "]"
