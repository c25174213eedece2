"""Each format's Triton functions against its NumPy reference: `load` gives the same bits, `dot` the exact integers."""

import os
import subprocess
import sys

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hotset.kernels.activation import Activation, quantise
from hotset.kernels.matvec import DeviceMatrix, matvec
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout
from hotset.quant.random import put_scales, scales_shape

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
INTEGER = pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.integer], ids=lambda f: f.name)


@triton.jit
def load_kernel(
    base, out, padded_rows, COLS: tl.constexpr, COLS_PADDED: tl.constexpr, LOAD: tl.constexpr, R: tl.constexpr
):
    row = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    k = tl.arange(0, COLS_PADDED)[None, :]
    value = LOAD(base, row, tl.minimum(k, COLS - 1), padded_rows, COLS)
    tl.store(out + row * COLS + k, value, mask=k < COLS)


def columns(fmt) -> int:
    return {1: 100, 32: 704, 64: 704, 256: 768}[fmt.block]


@ALL
@pytest.mark.parametrize("rows", [16, 48, 60])
def test_load_gives_the_bits_of_the_reference(fmt, rows, matrix):
    w = matrix(fmt.name, rows, columns(fmt))
    layout = w.layout
    out = torch.full((layout.padded_rows, layout.cols), torch.nan)
    load_kernel[(layout.n_groups,)](
        w.data, out, layout.padded_rows, COLS=layout.cols, COLS_PADDED=1024, LOAD=fmt.load, R=16
    )
    assert np.array_equal(out[:rows].numpy().view(np.uint32), layout.dequantize(w.data.numpy()).view(np.uint32))
    assert not out[rows:].any()


def integer_rows(m: int, cols: int, seed: int) -> torch.Tensor:
    """Small integers with a 127 in each block of 32: their quantised form is themselves, with scale 1."""
    x = np.random.default_rng(seed).integers(-9, 10, (m, cols))
    x[:, ::32] = 127
    return torch.from_numpy(x.astype(np.float32))


@INTEGER
def test_dot_gives_the_exact_integers(fmt, matrix):
    w = matrix(
        fmt.name, 48, columns(fmt), scale=1
    )  # block scales of 1: every value is an integer, or few bits behind the point
    x = Activation.empty(1, w.layout.cols, "cpu", quantised=True)
    x.f32.copy_(integer_rows(1, w.layout.cols, seed=1))
    quantise(x)
    assert torch.equal(x.q.to(torch.float32), x.f32)
    out = torch.full((1, w.layout.padded_rows), torch.nan)
    matvec(x, w, out)
    expected = x.f32.double().numpy() @ w.layout.dequantize(w.data.numpy()).astype(np.float64).T
    assert np.array_equal(out.numpy(), expected)


@INTEGER
def test_dot_holds_the_largest_values(fmt):
    raw = np.repeat(np.array([0x00, 0x7F, 0x80, 0xFF], np.uint8), 4)  # of the rows
    fields = fmt.fields_of_blocks(np.broadcast_to(raw[:, None, None], (16, 1, fmt.block_bytes)))
    put_scales(fmt, fields, np.ones(scales_shape(fmt, fields)))
    layout = MatrixLayout(fmt, 16, fmt.block)
    w = DeviceMatrix(layout, torch.from_numpy(layout.from_blocks(fmt.blocks_of_fields(fields))))
    x = Activation.empty(2, layout.cols, "cpu", quantised=True)
    x.f32[0], x.f32[1] = 127, -127
    quantise(x)
    out = torch.full((2, 16), torch.nan)
    matvec(x, w, out)
    values = layout.dequantize(w.data.numpy()).astype(np.float64)
    expected = x.f32.numpy().astype(np.float64) @ values.T
    assert np.abs(out.numpy() - expected).max() <= 1e-6 * 127 * np.abs(values).sum(1).max()


def test_the_formats_need_neither_triton_nor_torch():
    check = "import sys; sys.modules['triton'] = None; import hotset.quant.formats; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
