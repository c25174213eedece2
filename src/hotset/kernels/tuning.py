"""How the matrix kernels are cut into tiles, per class of device: numbers measured with benchmarks/kernels.py, in one place.

A thread holds 4 neighbouring rows of one unit at a time: one load of 16 bytes brings a word of each. So a tile of R rows and W warps
has 128 W / R units side by side. Tiles depend on the device and the shape of a matrix alone, never on the number of rows in a batch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from hotset.quant.tiles import ORDER_WARP, ORDER_WARPGROUP

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tile:
    """`rows` of a matrix per program, a multiple of 16; at most `warps` warps, fewer where the columns do not keep them busy."""

    rows: int
    warps: int

    @property
    def side_by_side(self) -> int:
        """Units (or elements, of float products) of a row that are taken at once."""
        return 128 * self.warps // self.rows

    def fit(self, padded_rows: int, n_side_by_side: int) -> Tile:
        """Return the tile for a matrix: its rows divide `padded_rows`, its warps are no more than the columns keep busy."""
        rows = self.rows
        while padded_rows % rows:
            rows //= 2
        warps = self.warps
        while warps > 1 and warps // 2 * 128 // rows >= n_side_by_side:
            warps //= 2
        return Tile(rows, warps)


@dataclass(frozen=True)
class Tuning:
    """The tiles of one class of device; `gate_up` quantises its results in blocks of 32 rows."""

    matvec: Tile
    matvec_float: Tile
    gate_up: Tile
    down: Tile
    dp4a: bool

    def __post_init__(self) -> None:
        assert self.gate_up.rows % 32 == 0


# A card with many multiprocessors has more of them than a small matrix has tiles, so that a tile takes more warps.
# Triton's interpreter pays for operations, not for elements.
MANY_MULTIPROCESSORS = 64
TILES = {
    "large": {
        "matvec": Tile(rows=16, warps=4),
        "matvec_float": Tile(rows=16, warps=8),
        "gate_up": Tile(rows=32, warps=8),
        "down": Tile(rows=16, warps=2),
    },
    "small": {
        "matvec": Tile(rows=16, warps=2),
        "matvec_float": Tile(rows=16, warps=4),
        "gate_up": Tile(rows=32, warps=4),
        "down": Tile(rows=16, warps=2),
    },
    "interpreter": dict.fromkeys(("matvec", "matvec_float", "gate_up", "down"), Tile(rows=256, warps=64)),
}


@cache
def tuning_for(device: torch.device) -> Tuning:
    """Return the tiles for a device; a CPU stands for Triton's interpreter."""
    if device.type == "cpu" or os.environ.get("TRITON_INTERPRET") == "1":
        return Tuning(**TILES["interpreter"], dp4a=False)
    import torch

    many = torch.cuda.get_device_properties(device).multi_processor_count >= MANY_MULTIPROCESSORS
    return Tuning(**TILES["large" if many else "small"], dp4a=torch.version.hip is None)


# Triton 3.6 compiles products for the tensor cores of this compute capability on; before it (Turing) they become scalar ones.
TENSOR_CORES_FROM = (8, 0)


@cache
def has_tensor_cores(device: torch.device) -> bool:
    """Say whether a chunk's products run on tensor cores; where not, prompts are faster through the decode kernels."""
    if device.type == "cpu":
        return True
    import torch

    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= TENSOR_CORES_FROM


@dataclass(frozen=True)
class ChunkTile:
    """How products of a chunk are cut: `rows` of a matrix (a multiple of 32) by `tokens`, `depth` elements of k at a time.

    A cut with at most `few` tokens is computed `few` wide: the same bits, as a GPU test shows. Where programs stay and take cut after
    cut there are `programs` of them per multiprocessor.
    """

    rows: int
    tokens: int
    few: int
    depth: int
    warps: int
    stages: int
    programs: int = 1

    def fit(self, padded_rows: int) -> int:
        """Return how many rows to take of a matrix: they divide `padded_rows`."""
        rows = self.rows
        while padded_rows % rows:
            rows //= 2
        return rows


@dataclass(frozen=True)
class AttentionTile:
    """Queries and keys that chunk attention takes at a time. Without `pipelined` its loop over keys is a plain one.

    A device number cannot bound Triton's pipelined loop in the interpreter with NumPy 2.4.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    pipelined: bool = True


@dataclass(frozen=True, eq=False)
class ChunkTuning:
    """The tiles of a prompt's chunk on one class of device; `order` is that of quant/tiles.py.

    `narrow` is for dense products that `dense` would cut into fewer pieces than there are multiprocessors.
    """

    order: int
    n_multiprocessors: int
    gate_up: ChunkTile
    down: ChunkTile
    dense: ChunkTile
    narrow: ChunkTile
    float32: ChunkTile
    attention: AttentionTile

    def __post_init__(self) -> None:
        assert self.gate_up.tokens == self.down.tokens

    @property
    def expert_tokens(self) -> int:
        """Pairs of a full tile of the chunk's plan."""
        return self.down.tokens


CHUNK_TILES: dict[str, dict[str, Any]] = {
    "hopper": {
        "gate_up": ChunkTile(rows=128, tokens=128, few=32, depth=64, warps=8, stages=3),
        "down": ChunkTile(rows=128, tokens=128, few=32, depth=64, warps=8, stages=3),
        "dense": ChunkTile(rows=128, tokens=256, few=32, depth=64, warps=8, stages=3),
        "narrow": ChunkTile(rows=128, tokens=64, few=16, depth=64, warps=8, stages=3),
        "float32": ChunkTile(rows=64, tokens=64, few=64, depth=32, warps=8, stages=2),
        "attention": AttentionTile(queries=128, keys=64, warps=8, stages=3),
    },
    "other": {
        "gate_up": ChunkTile(rows=64, tokens=64, few=16, depth=64, warps=4, stages=3, programs=2),
        "down": ChunkTile(rows=64, tokens=64, few=16, depth=64, warps=4, stages=3, programs=2),
        "dense": ChunkTile(rows=64, tokens=64, few=16, depth=64, warps=4, stages=3),
        "narrow": ChunkTile(rows=64, tokens=32, few=16, depth=64, warps=4, stages=3),
        "float32": ChunkTile(rows=64, tokens=64, few=64, depth=32, warps=8, stages=2),
        "attention": AttentionTile(queries=64, keys=32, warps=4, stages=2),
    },
    "interpreter": {
        **dict.fromkeys(
            ("gate_up", "down", "dense", "narrow", "float32"),
            ChunkTile(rows=256, tokens=64, few=16, depth=64, warps=4, stages=1),
        ),
        "attention": AttentionTile(queries=32, keys=16, warps=4, stages=1, pipelined=False),
    },
}


@cache
def chunk_tuning_for(device: torch.device) -> ChunkTuning:
    """Return the tiles of a chunk for a device; a CPU stands for Triton's interpreter."""
    if device.type == "cpu" or os.environ.get("TRITON_INTERPRET") == "1":
        return ChunkTuning(order=ORDER_WARPGROUP, n_multiprocessors=4, **CHUNK_TILES["interpreter"])
    import torch

    properties = torch.cuda.get_device_properties(device)
    hopper = torch.version.hip is None and properties.major == 9
    tiles = CHUNK_TILES["hopper" if hopper else "other"]
    order = ORDER_WARPGROUP if hopper else ORDER_WARP
    return ChunkTuning(order=order, n_multiprocessors=properties.multi_processor_count, **tiles)
