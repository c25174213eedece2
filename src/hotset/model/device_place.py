"""Weights on a GPU, still quantised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hotset.host.rearrange import aligned_bytes, rearrange
from hotset.kernels.matvec import DeviceMatrix
from hotset.model.batch import MAX_ROWS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.quant.layout import Bytes, MatrixLayout


class DevicePlace:
    """Puts weights onto a device."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)

    def matrix(
        self,
        layout: MatrixLayout,
        blocks: Bytes,
        *,
        n: int = 1,
        bias: NDArray[np.float32] | None = None,
        scale: float = 1.0,
    ) -> DeviceMatrix:
        planes = aligned_bytes(n * layout.n_bytes)
        rearrange(layout, blocks.reshape(-1), planes.ctypes.data, n_items=n, target_stride=layout.n_bytes)
        data = torch.from_numpy(planes).to(self.device)
        padded = None if bias is None else self.vector(np.pad(bias, (0, layout.padded_rows - bias.size)))
        if n == 1:
            return DeviceMatrix(layout, data, padded, scale=scale)
        turns = torch.arange(MAX_ROWS * n, device=self.device) % n
        return DeviceMatrix(layout, data, padded, data.data_ptr() + turns * layout.n_bytes)

    def vector(self, values: NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(np.array(values, np.float32)).to(self.device)
