"""Random matrices in planes, which the kernel tests share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.kernels.matvec import DeviceMatrix
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout


def random_planes(layout: MatrixLayout, seed: int, scale: float | None = None) -> np.ndarray:
    """Random fields, zeros in padded rows; float fields are all `scale` if given, else small normal numbers."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, layout.n_bytes, np.uint8)
    for i, p in enumerate(layout.fmt.planes):
        plane = layout.plane(data, i)
        if p.dtype in ("<f2", "<f4"):
            plane[...] = rng.normal(0, 0.1, plane.shape) if scale is None else scale
        elif layout.fmt.name == "BF16":
            plane[...] = rng.normal(0, 0.1, plane.shape).astype("<f4").view("<u4") >> 16
        elif p.name in ("scale", "minimum") and p.dtype == "u1":
            plane[...] &= 63
        plane[-1, :, :, 16 + layout.rows - layout.padded_rows :] = 0
    return data


@pytest.fixture
def matrix():
    """Return a maker of matrices, by the name of the format."""
    by_name = {f.name: f for f in FORMATS.values()}

    def make(name: str, rows: int, cols: int, seed: int = 0, scale: float | None = None) -> DeviceMatrix:
        layout = MatrixLayout(by_name[name], rows, cols)
        return DeviceMatrix(layout, torch.from_numpy(random_planes(layout, seed, scale)))

    return make
