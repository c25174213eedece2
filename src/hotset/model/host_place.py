"""Weights in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotset.host.rearrange import aligned_bytes, rearrange

if TYPE_CHECKING:
    from hotset.quant.layout import Bytes, MatrixLayout


@dataclass(frozen=True, eq=False)
class HostMatrix:
    """A matrix in planes, or several of one layout; `address` int64 [n] is where each begins; products are multiplied by `scale`, and `bias` float32 [rows] is added."""

    layout: MatrixLayout
    data: Bytes
    address: NDArray[np.int64]
    bias: NDArray[np.float32] | None = None
    scale: float = 1.0


class HostPlace:
    """Puts weights into host memory."""

    def matrix(
        self,
        layout: MatrixLayout,
        blocks: Bytes,
        *,
        n: int = 1,
        bias: NDArray[np.float32] | None = None,
        scale: float = 1.0,
    ) -> HostMatrix:
        data = aligned_bytes(n * layout.n_bytes)
        rearrange(layout, blocks.reshape(-1), data.ctypes.data, n_items=n, target_stride=layout.n_bytes)
        return HostMatrix(layout, data, data.ctypes.data + np.arange(n) * layout.n_bytes, bias, scale)

    def vector(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values
