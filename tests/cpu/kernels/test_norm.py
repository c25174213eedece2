"""The norm and the quantisation in Triton's interpreter against their PyTorch twins."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from hotset.kernels.activation import Activation, quantise, quantised_reference
from hotset.kernels.norm import rms_norm, rms_norm_reference

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, on the infinities below


def rows(m: int, cols: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, cols, generator=torch.Generator().manual_seed(seed)) * 3


def poisoned(m: int, cols: int, *, quantised: bool) -> Activation:
    a = Activation.empty(m, cols, "cpu", quantised=quantised)
    for t in a.tensors:
        if t is not None:
            t.fill_(torch.nan if t.is_floating_point() else 99)
    return a


def assert_same_quantised(a: Activation, b: Activation) -> None:
    for got, expected in zip(a.tensors[1:], b.tensors[1:], strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("cols", [32, 704, 2880])
def test_quantisation_gives_the_bits_of_the_reference(cols):
    a = poisoned(3, cols, quantised=True)
    a.f32.copy_(rows(3, cols))
    quantise(a)
    assert_same_quantised(a, quantised_reference(a.f32))


def test_quantisation_rounds_half_to_even_and_keeps_zeros_and_tiny_blocks():
    a = poisoned(1, 128, quantised=True)
    a.f32.zero_()
    a.f32[0, :6] = torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5])
    a.f32[0, 64:96] = 1e-42
    quantise(a)
    assert a.q[0, :6].tolist() == [127, 0, 2, 2, 0, -2]
    assert not a.q[0, 6:].any()
    assert not a.d.isnan().any()
    assert_same_quantised(a, quantised_reference(a.f32))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_shows_in_its_block(bad):
    a = poisoned(1, 64, quantised=True)
    a.f32.fill_(1)
    a.f32[0, 33] = bad
    quantise(a)
    assert a.d.isnan().tolist() == [[False, True]]
    assert a.s.isnan().tolist() == [[False, True]]


@pytest.mark.parametrize("cols", [100, 256, 2880])
@pytest.mark.parametrize("quantised", [False, True])
def test_the_norm_is_that_of_the_reference(cols, quantised):
    x, weight = rows(2, cols), rows(1, cols, seed=1)[0]
    a = poisoned(2, cols, quantised=quantised)
    rms_norm(x, weight, a, eps=1e-6)
    expected = rms_norm_reference(x, weight, 1e-6).f32
    assert (a.f32 - expected).norm() < 1e-6 * expected.norm()
    assert (a.q is None) == (not quantised or cols % 32 != 0)
    if a.q is not None:
        assert_same_quantised(a, quantised_reference(a.f32))


def test_a_row_has_the_same_bits_alone_and_in_a_batch():
    x, weight = rows(3, 96), rows(1, 96, seed=1)[0]
    together = poisoned(3, 96, quantised=True)
    rms_norm(x, weight, together, eps=1e-6)
    for m in range(3):
        alone = poisoned(1, 96, quantised=True)
        rms_norm(x[m : m + 1], weight, alone, eps=1e-6)
        assert all(torch.equal(a[0], b[m]) for a, b in zip(alone.tensors, together.tensors, strict=True))


def test_the_norm_of_zeros_is_zero():
    a = poisoned(1, 64, quantised=True)
    rms_norm(torch.zeros(1, 64), torch.ones(64), a, eps=1e-6)
    assert not a.f32.any()
    assert not a.q.any()
