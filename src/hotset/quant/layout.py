"""How a quantised matrix lies in a span: planes of units, sixteen rows side by side.

A GGUF matrix [rows, cols] is `rows` times `cols // block` blocks of raw bytes. Here every field of a block is a *plane*: an array of
units (1, 2 or 4 bytes) indexed [group, block, unit, row], where a group is `GROUP` = 16 rows and the rows of a group lie side by side.
One 64-byte load so brings the same word of 16 rows: 16 lanes of a CPU vector, four rows for each of four GPU threads. The planes of a
matrix follow each other, after a table in a few formats; every plane is a multiple of 16 bytes. Rows are padded to a whole group with zero bytes, which every format
reads as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.errors import InputError

GROUP = 16
SPAN_ALIGNMENT = 256
MATRIX_ALIGNMENT = 64

Bytes = NDArray[np.uint8]
Fields = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Plane:
    """One field of a block: `count` units of `dtype`.

    `source` is its byte offset in the GGUF block; `move` says how the bytes come from there: "copy", or unpacked (the others are in
    host/rearrange.py). A plane is cut into as many parts as the host takes `steps` through a block, unless it serves the `whole` block.
    """

    name: str
    dtype: str
    count: int
    source: int
    move: str = "copy"
    whole: bool = False

    @property
    def unit_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def bytes_per_block(self) -> int:
        return self.unit_bytes * self.count


@dataclass(frozen=True, eq=False)
class QuantFormat:
    """One quantisation format: its GGUF block, its planes and what the kernels need to read them.

    `values` is the reference: fields [..., count] -> float32 [..., block], the bits of ggml's dequantisation.
    `split` and `join` (only where a plane has no place of its own in the block) turn raw blocks into those planes' fields and back.
    `chunks` emits the host kernel's view of one block, or of one of `steps` equal parts of at least 32 (host/emit.py); `load`, `dot` and `tile` are the
    Triton twins (kernels/). `table` is a codebook (bytes, a multiple of 64): it stands before the planes of every matrix, so that whoever
    has a matrix's address can read it.
    """

    name: str
    ggml_type: int
    block: int
    block_bytes: int
    planes: tuple[Plane, ...]
    values: Callable[[Fields], NDArray[np.float32]]
    chunks: Callable[..., Any]
    split: Callable[[Bytes], dict[str, NDArray[Any]]] | None = None
    join: Callable[[Fields, Bytes], None] | None = None
    integer: bool = True
    load: Any = field(default=None, repr=False)
    dot: Any = field(default=None, repr=False)
    unit: int = 0
    tile: Any = field(default=None, repr=False)
    tile_unit: int = 32
    steps: int = 1
    table: Bytes | None = field(default=None, repr=False)

    @property
    def table_bytes(self) -> int:
        return 0 if self.table is None else self.table.size

    @cached_property
    def bytes_per_block(self) -> int:
        """Bytes of one row's block in the planes; `block_bytes` is the same in the GGUF file."""
        return sum(p.bytes_per_block for p in self.planes)

    def fields_of_blocks(self, blocks: Bytes) -> dict[str, NDArray[Any]]:
        """Raw GGUF blocks uint8 [..., block_bytes] -> fields {plane: [..., count]}."""
        fields: dict[str, NDArray[Any]] = {}
        for p in self.planes:
            if p.move == "copy":
                part = np.ascontiguousarray(blocks[..., p.source : p.source + p.bytes_per_block])
                fields[p.name] = part.view(p.dtype)
        return fields | (self.split(blocks) if self.split else {})

    def blocks_of_fields(self, fields: Fields) -> Bytes:
        """Fields {plane: [..., count]} -> raw GGUF blocks uint8 [..., block_bytes]."""
        lead = fields[self.planes[0].name].shape[:-1]
        blocks = np.zeros((*lead, self.block_bytes), np.uint8)
        for p in self.planes:
            if p.move == "copy":
                part = np.ascontiguousarray(fields[p.name]).astype(p.dtype, copy=False)
                blocks[..., p.source : p.source + p.bytes_per_block] = part.view(np.uint8)
        if self.join:
            self.join(fields, blocks)
        return blocks


@dataclass(frozen=True, eq=False)
class MatrixLayout:
    """A matrix [rows, cols] of one format in planes; offsets and sizes in bytes."""

    fmt: QuantFormat
    rows: int
    cols: int

    def __post_init__(self) -> None:
        if self.cols % self.fmt.block:
            raise InputError(f"{self.cols} columns are no multiple of {self.fmt.name}'s block of {self.fmt.block}")

    @property
    def n_blocks(self) -> int:
        return self.cols // self.fmt.block

    @property
    def n_groups(self) -> int:
        return -(-self.rows // GROUP)

    @property
    def padded_rows(self) -> int:
        return self.n_groups * GROUP

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the GGUF file."""
        return self.n_blocks * self.fmt.block_bytes

    @cached_property
    def n_bytes(self) -> int:
        return self.fmt.table_bytes + self.padded_rows * self.n_blocks * self.fmt.bytes_per_block

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each plane begins."""
        starts = np.cumsum([0] + [p.bytes_per_block for p in self.fmt.planes])[:-1]
        return tuple(self.fmt.table_bytes + int(s) * self.padded_rows * self.n_blocks for s in starts)

    def plane(self, data: Bytes, index: int) -> NDArray[Any]:
        """Plane `index` of `data` (uint8 [n_bytes]) as a view [groups, blocks, count, GROUP]."""
        p = self.fmt.planes[index]
        size = p.bytes_per_block * self.padded_rows * self.n_blocks
        part = data[self.offsets[index] : self.offsets[index] + size]
        return part.view(p.dtype).reshape(self.n_groups, self.n_blocks, p.count, GROUP)

    def fields(self, data: Bytes) -> dict[str, NDArray[Any]]:
        """Planes uint8 [n_bytes] -> fields {plane: [rows, blocks, count]}."""
        fields = {}
        for i, p in enumerate(self.fmt.planes):
            by_row = self.plane(data, i).transpose(0, 3, 1, 2).reshape(self.padded_rows, self.n_blocks, p.count)
            fields[p.name] = by_row[: self.rows]
        return fields

    def dequantize(self, data: Bytes) -> NDArray[np.float32]:
        """Planes uint8 [n_bytes] -> float32 [rows, cols], the bits of ggml's dequantisation."""
        return self.fmt.values(self.fields(data)).reshape(self.rows, self.cols)

    def dequantize_rows(self, data: Bytes, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Some rows of the planes, by number: int [m] -> float32 [m, cols]."""
        group, lane = rows // GROUP, rows % GROUP
        fields = {p.name: self.plane(data, i)[group, :, :, lane] for i, p in enumerate(self.fmt.planes)}
        return self.fmt.values(fields).reshape(len(rows), self.cols)

    def to_blocks(self, data: Bytes) -> Bytes:
        """Planes uint8 [n_bytes] -> the GGUF bytes uint8 [rows, row_bytes]: the inverse of `from_blocks`."""
        return self.fmt.blocks_of_fields(self.fields(data)).reshape(self.rows, self.row_bytes)

    def from_blocks(self, blocks: Bytes) -> Bytes:
        """GGUF bytes uint8 [rows * row_bytes] -> planes uint8 [n_bytes]; the plain twin of rearrange.rearrange."""
        fields = self.fmt.fields_of_blocks(blocks.reshape(self.rows, self.n_blocks, self.fmt.block_bytes))
        data = np.empty(self.n_bytes, np.uint8)
        if self.fmt.table is not None:
            data[: self.fmt.table_bytes] = self.fmt.table
        for i, p in enumerate(self.fmt.planes):
            padded = np.zeros((self.padded_rows, self.n_blocks, p.count), p.dtype)
            padded[: self.rows] = fields[p.name]
            self.plane(data, i)[...] = padded.reshape(self.n_groups, GROUP, self.n_blocks, p.count).transpose(
                0, 2, 3, 1
            )
        return data


@dataclass(frozen=True, eq=False)
class SpanLayout:
    """One expert's matrices in one contiguous span: `roles` name them, `starts` give their byte offsets."""

    roles: tuple[str, ...]
    matrices: tuple[MatrixLayout, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        starts, at = [], 0
        for m in self.matrices:
            starts.append(at)
            at = align(at + m.n_bytes, MATRIX_ALIGNMENT)
        return tuple(starts)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of the span, a multiple of `SPAN_ALIGNMENT`."""
        return align(self.starts[-1] + self.matrices[-1].n_bytes, SPAN_ALIGNMENT)

    def matrix(self, role: str) -> MatrixLayout:
        return self.matrices[self.roles.index(role)]

    def start(self, role: str) -> int:
        return self.starts[self.roles.index(role)]


def align(n: int, to: int) -> int:
    return -(-n // to) * to
