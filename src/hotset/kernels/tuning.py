"""How the matrix kernels are cut into tiles, per class of device: numbers measured with benchmarks/kernels.py, in one place.

A thread holds 4 neighbouring rows of one unit at a time: one load of 16 bytes brings a word of each. So a tile of R rows and W warps
has 128 W / R units side by side. Tiles depend on the device and the shape of a matrix alone, never on the number of rows in a batch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

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
