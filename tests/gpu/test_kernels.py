"""The matrix kernels on a real GPU at real sizes: bits of `load`, exact integers of `dot`, dp4a against the portable form, batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotset.kernels.activation import Activation, quantise, quantised_reference
from hotset.kernels.experts import ExpertBuffers, expert_step
from hotset.kernels.matvec import DeviceMatrix, matvec
from hotset.kernels.norm import rms_norm, rms_norm_reference
from hotset.kernels.tuning import tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.random import random_blocks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
INTEGER = pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.integer], ids=lambda f: f.name)
BY_NAME = {f.name: f for f in FORMATS.values()}
CUDA = torch.device("cuda")


def matrix(fmt, rows: int, cols: int, seed: int = 0, scale: float | None = None) -> DeviceMatrix:
    layout = MatrixLayout(fmt, rows, cols)
    planes = layout.from_blocks(random_blocks(fmt, rows, cols, seed, scale))
    return DeviceMatrix(layout, torch.from_numpy(planes).cuda())


def values(w: DeviceMatrix) -> torch.Tensor:
    return torch.from_numpy(w.layout.dequantize(w.data.cpu().numpy())).cuda()


def activation(x: torch.Tensor, *, quantised: bool) -> Activation:
    a = Activation.empty(*x.shape, "cuda", quantised=quantised)
    a.f32.copy_(x)
    quantise(a)
    return a


def product(x: Activation, w: DeviceMatrix, **options) -> torch.Tensor:
    out = torch.full((len(x.f32), w.layout.padded_rows), torch.nan, device="cuda")
    matvec(x, w, out, **options)
    return out


def normal(m: int, cols: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, cols, generator=torch.Generator().manual_seed(seed)).cuda()


def relative_rms(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


def only(a: Activation, m: int) -> Activation:
    return Activation(*(None if t is None else t[m : m + 1].clone() for t in a.tensors))


@ALL
def test_load_gives_the_bits_of_the_reference(fmt):
    w = matrix(fmt, 64, 768)
    picked = torch.arange(0, 768, 96, device="cuda")
    one_hot = torch.zeros(8, 768, device="cuda")
    one_hot[torch.arange(8), picked] = 1
    assert torch.equal(product(activation(one_hot, quantised=False), w), values(w)[:, picked].T)


@ALL
@pytest.mark.parametrize("cols", [2048, 768])
def test_products_are_close_to_float64(fmt, cols):
    w = matrix(fmt, 2048, cols)
    x = normal(2, cols)
    expected = x.double() @ values(w).double().T
    assert relative_rms(product(activation(x, quantised=False), w), expected) < 1e-6
    fast = activation(x, quantised=True)
    got = product(fast, w)
    assert relative_rms(got, expected) < 1e-2
    if fmt.integer:
        rounded = fast.q.double() * fast.d.double().repeat_interleave(32, 1)
        assert relative_rms(got, rounded @ values(w).double().T) < 1e-6


@INTEGER
def test_dot_gives_the_exact_integers(fmt):
    w = matrix(fmt, 2048, 768, scale=1)
    x = torch.from_numpy(np.random.default_rng(1).integers(-9, 10, (3, 768)).astype(np.float32))
    x[:, ::32] = 127
    expected = x.double().numpy() @ values(w).double().cpu().numpy().T
    assert np.array_equal(product(activation(x, quantised=True), w).cpu().numpy(), expected)


@INTEGER
def test_dp4a_and_the_portable_form_give_the_same_bits(fmt):
    tuning = tuning_for(CUDA)
    if not tuning.dp4a:
        pytest.skip("this GPU has no dp4a")
    w = matrix(fmt, 2048, 2048)
    x = activation(normal(2, 2048), quantised=True)
    assert torch.equal(product(x, w), product(x, w, tuning=replace(tuning, dp4a=False)))


@ALL
@pytest.mark.parametrize("quantised", [False, True], ids=["reference", "fast"])
def test_rows_have_the_same_bits_alone_and_in_batches(fmt, quantised):
    w = matrix(fmt, 1024, 2048)
    x = normal(8, 2048)
    alone = torch.cat([product(activation(x[m : m + 1], quantised=quantised), w) for m in range(8)])
    for m in (2, 3, 8):
        assert torch.equal(product(activation(x[:m], quantised=quantised), w), alone[:m])


@pytest.mark.parametrize("cols", [2048, 2880, 7168])
def test_the_norm_and_its_quantised_form_are_those_of_the_reference(cols):
    x, weight = normal(3, cols), normal(1, cols, seed=1)[0]
    a = Activation.empty(3, cols, "cuda", quantised=True)
    rms_norm(x, weight, a, eps=1e-6)
    assert relative_rms(a.f32, rms_norm_reference(x.double(), weight.double(), 1e-6).f32) < 1e-6
    expected = quantised_reference(a.f32.cpu())
    for got, want in zip(a.tensors[1:], expected.tensors[1:], strict=True):
        assert torch.equal(got.cpu(), want)


class Experts:
    """Spans of a few experts in one pool, with their dequantised matrices."""

    def __init__(self, names: tuple[str, str, str], n: int = 4, d_model: int = 2048, d_ff: int = 768) -> None:
        shapes = ((d_ff, d_model), (d_ff, d_model), (d_model, d_ff))
        kinds = [MatrixLayout(BY_NAME[name], *shape) for name, shape in zip(names, shapes, strict=True)]
        self.layout = SpanLayout(("gate", "up", "down"), tuple(kinds))
        self.pool = torch.zeros(n, self.layout.n_bytes, dtype=torch.uint8, device="cuda")
        self.values = []
        for e in range(n):
            made = [matrix(k.fmt, k.rows, k.cols, seed=10 * e + i) for i, k in enumerate(kinds)]
            for start, w in zip(self.layout.starts, made, strict=True):
                self.pool[e, start : start + w.layout.n_bytes] = w.data
            self.values.append([values(w).double() for w in made])

    def run(self, x: Activation, picks: torch.Tensor, weights: torch.Tensor, **options) -> torch.Tensor:
        address = (self.pool.data_ptr() + picks.flatten() * self.layout.n_bytes).cuda()
        buffers = ExpertBuffers.empty(self.layout, picks.numel(), "cuda", quantised=x.q is not None)
        out = torch.zeros(len(x.f32), self.layout.matrix("down").rows, device="cuda")
        expert_step(x, address, weights.flatten(), self.layout, buffers, out, **options)
        return out

    def expected(self, x: torch.Tensor, picks: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(x), self.values[0][2].shape[0], dtype=torch.float64, device="cuda")
        for m, row in enumerate(picks.tolist()):
            for j, e in enumerate(row):
                gate, up, down = self.values[e]
                one = x[m].double()
                hidden = torch.nn.functional.silu(gate @ one) * (up @ one)
                out[m] += weights[m, j].double() * (down @ hidden)
        return out


@pytest.mark.parametrize(
    "names",
    [
        ("Q4_K", "Q4_K", "Q6_K"),
        ("Q4_K", "Q4_K", "Q4_K"),
        ("Q5_K", "Q6_K", "Q5_0"),
        ("Q8_0", "F16", "Q8_0"),
        ("MXFP4", "MXFP4", "MXFP4"),
        ("IQ2_XS", "Q3_K", "NVFP4"),
        ("IQ4_XS", "IQ1_M", "TQ1_0"),
    ],
    ids="-".join,
)
def test_the_expert_step_is_close_to_float64_and_the_same_in_batches(names):
    experts = Experts(names)
    x = normal(8, 2048) / 16
    picks = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(m))[:3] for m in range(8)])
    weights = torch.rand(8, 3, generator=torch.Generator().manual_seed(9)).cuda()
    expected = experts.expected(x, picks, weights)
    for quantised, limit in ((False, 1e-5), (True, 2e-2)):
        a = activation(x, quantised=quantised)
        together = experts.run(a, picks, weights)
        assert relative_rms(together, expected) < limit
        for m in (1, 2, 3):
            part = Activation(*(None if t is None else t[:m].contiguous() for t in a.tensors))
            assert torch.equal(experts.run(part, picks[:m], weights[:m]), together[:m])
        assert torch.equal(experts.run(only(a, 5), picks[5:6], weights[5:6])[0], together[5])
    portable = replace(tuning_for(CUDA), dp4a=False)
    assert torch.equal(experts.run(a, picks, weights, tuning=portable), together)
