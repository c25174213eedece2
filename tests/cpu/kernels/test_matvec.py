"""The dense product in Triton's interpreter: against float64, rows alone and in a batch, added and poisoned."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotset.kernels.activation import Activation, quantise
from hotset.kernels.matvec import matvec
from hotset.kernels.tuning import Tile, tuning_for
from hotset.quant.formats import FORMATS
from samples import BY_NAME

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, on the NaN below
CPU = torch.device("cpu")


def activation(m: int, cols: int, *, quantised: bool, seed: int = 0) -> Activation:
    x = Activation.empty(m, cols, "cpu", quantised=quantised)
    x.f32.copy_(torch.from_numpy(np.random.default_rng(seed).normal(0, 1, (m, cols)).astype(np.float32)))
    quantise(x)
    return x


def poisoned(x: Activation, w) -> torch.Tensor:
    return torch.full((len(x.f32), w.layout.padded_rows), torch.nan)


def product(x: Activation, w, **options) -> torch.Tensor:
    out = poisoned(x, w)
    matvec(x, w, out, **options)
    return out


def relative_rms(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


def exact(x: torch.Tensor, w) -> torch.Tensor:
    return x.double() @ torch.from_numpy(w.layout.dequantize(w.data.numpy())).double().T


@ALL
@pytest.mark.parametrize("shape", [(16, 256), (60, 768)])
def test_float_products_are_those_of_the_dequantised_matrix(fmt, shape, matrix):
    w = matrix(fmt.name, *shape)
    x = activation(2, shape[1], quantised=False)
    out = product(x, w)
    assert relative_rms(out[:, : shape[0]].double(), exact(x.f32, w)) < 1e-6
    assert not out[:, shape[0] :].any()


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q4_K", "Q6_K", "NVFP4", "IQ2_XS"])
def test_columns_off_the_tile_are_not_read(name, matrix):
    fmt = BY_NAME[name]
    w = matrix(fmt.name, 16, {1: 100, 32: 96, 64: 192, 256: 256}[fmt.block])
    x = activation(1, w.layout.cols, quantised=True)
    read = x.q.double() * x.d.double().repeat_interleave(32, 1) if fmt.integer else x.f32
    assert relative_rms(product(x, w).double(), exact(read, w)) < 1e-6


@ALL
def test_integer_products_are_those_of_the_quantised_activations(fmt, matrix):
    w = matrix(fmt.name, 48, 704 if fmt.block in (32, 64) else 768)
    x = activation(1, w.layout.cols, quantised=True)
    out = product(x, w).double()
    if fmt.integer:
        rounded = x.q.double() * x.d.double().repeat_interleave(32, 1)
        assert relative_rms(out, exact(rounded, w)) < 1e-6
    assert relative_rms(out, exact(x.f32, w)) < 1e-2


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q5_0"])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(name, quantised, matrix):
    w = matrix(name, 16, 256)
    together = product(x := activation(3, 256, quantised=quantised), w)
    for m in range(3):
        alone = Activation(*(None if t is None else t[m : m + 1] for t in x.tensors))
        assert torch.equal(product(alone, w), together[m : m + 1])


def test_the_product_can_be_added_to_what_is_there(matrix):
    w = matrix("Q4_K", 32, 256)
    x = activation(2, 256, quantised=True)
    before = torch.arange(64, dtype=torch.float32).reshape(2, 32)
    out = before.clone()
    matvec(x, w, out, add=True)
    assert torch.equal(out, before + product(x, w))


@pytest.mark.parametrize("tile", [Tile(16, 1), Tile(32, 2)])
def test_every_tile_takes_all_rows_and_columns(tile, matrix):
    w = matrix("Q4_K", 32, 768)
    x = activation(1, 768, quantised=True)
    tuning = replace(tuning_for(CPU), matvec=tile)
    assert relative_rms(product(x, w, tuning=tuning), product(x, w)) < 1e-6


def test_a_nan_in_the_activations_shows(matrix):
    w = matrix("Q8_0", 16, 64)
    x = Activation.empty(2, 64, "cpu", quantised=True)
    x.f32.fill_(1)
    x.f32[1, 40] = torch.nan
    quantise(x)
    out = product(x, w)
    assert not out[0].isnan().any()
    assert out[1].isnan().all()


def test_tiles_have_no_more_warps_than_the_columns_keep_busy():
    assert Tile(16, 4).fit(64, 32) == Tile(16, 4)
    assert Tile(16, 4).fit(64, 12) == Tile(16, 2)
    assert Tile(16, 4).fit(64, 1) == Tile(16, 1)
    assert Tile(32, 8).fit(48, 999) == Tile(16, 8)
    assert Tile(256, 64).fit(192, 999) == Tile(64, 64)
