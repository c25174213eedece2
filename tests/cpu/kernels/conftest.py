"""Random matrices in planes, which the kernel tests share."""

from __future__ import annotations

import pytest
import torch

from hotset.kernels.matvec import DeviceMatrix
from hotset.quant.layout import MatrixLayout
from hotset.quant.random import random_blocks
from samples import BY_NAME


@pytest.fixture
def matrix():
    """Return a maker of matrices, by the name of the format; `scale` as in quant.random."""

    def make(name: str, rows: int, cols: int, seed: int = 0, scale: float | None = None) -> DeviceMatrix:
        layout = MatrixLayout(BY_NAME[name], rows, cols)
        planes = layout.from_blocks(random_blocks(layout.fmt, rows, cols, seed, scale))
        return DeviceMatrix(layout, torch.from_numpy(planes))

    return make
