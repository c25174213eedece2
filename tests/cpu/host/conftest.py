"""Products of a matrix and rows of activations, as the ops make them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hotset.host import dot
from hotset.host.activation import Activation, quantized
from hotset.host.cpu import levels
from hotset.host.matmul import grouped_matmul
from hotset.host.rearrange import to_planes
from hotset.quant.layout import Bytes, MatrixLayout


@dataclass(frozen=True)
class Product:
    """One matrix from its GGUF blocks."""

    layout: MatrixLayout
    planes: Bytes

    @classmethod
    def of(cls, fmt, rows: int, cols: int, blocks: np.ndarray) -> Product:
        layout = MatrixLayout(fmt, rows, cols)
        return cls(layout, to_planes(layout, blocks.reshape(-1)))

    @property
    def values(self) -> np.ndarray:
        return self.layout.dequantize(self.planes).astype(np.float64)

    def __call__(self, a: Activation, way: int, level: str = levels()[0]) -> np.ndarray:
        """All rows of the padded output, float32 [m, padded_rows]."""
        multiply = grouped_matmul(self.layout.fmt.ggml_type, way, level)
        m = a.n_rows
        out = np.full((m, self.layout.padded_rows), np.nan, np.float32)
        rows, starts = np.arange(m), np.array([0, m])
        address = np.array([self.planes.ctypes.data], np.int64)
        multiply(
            address, starts, rows, rows, self.layout.n_groups, self.layout.n_blocks, a.f, a.q, a.d, a.m, a.h, out
        )  # fmt: skip
        return out

    def float_way(self, x: np.ndarray) -> np.ndarray:
        return self(quantized(x, integers=False), dot.FLOAT)[:, : self.layout.rows]

    def integer_way(self, x: np.ndarray, level: str = levels()[0]) -> np.ndarray:
        return self(quantized(x, integers=True), dot.INTEGER, level)[:, : self.layout.rows]


@pytest.fixture
def product():
    return Product.of


def rows_of(m: int, cols: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((m, cols), np.float32)


@pytest.fixture
def activations():
    return rows_of
