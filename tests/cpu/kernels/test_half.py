"""Rows of a chunk as float16 operands: range, precision, order of columns, the norm in the same launch, and parts brought to one scale."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hotset.kernels.half import ChunkRows, halve, level, rms_norm_rows
from hotset.kernels.norm import rms_norm_reference
from hotset.kernels.tuning import chunk_tuning_for
from hotset.quant.tiles import ORDER_WARP, ORDER_WARPGROUP, element_at, position_of

TUNING = chunk_tuning_for(torch.device("cpu"))
ORDERS = pytest.mark.parametrize("order", [ORDER_WARPGROUP, ORDER_WARP], ids=["warpgroup", "warp"])


@triton.jit
def order_kernel(out, back, ORDER: tl.constexpr, N: tl.constexpr):
    k = tl.arange(0, N)
    tl.store(out + k, position_of(k, ORDER))
    tl.store(back + k, element_at(position_of(k, ORDER), ORDER))


def positions(order: int, n: int) -> torch.Tensor:
    out, back = torch.zeros(n, dtype=torch.int32), torch.zeros(n, dtype=torch.int32)
    order_kernel[(1,)](out, back, ORDER=order, N=n)
    assert torch.equal(back, torch.arange(n, dtype=torch.int32))
    return out.long()


def values(x: ChunkRows, order: int) -> torch.Tensor:
    """What the halves stand for, in the order of the columns."""
    width = 1 << (x.shape[1] - 1).bit_length()
    at = positions(order, width)[: x.shape[1]]
    return x.half[:, at].double() * x.scale.double()[:, None]


def normal(m: int, cols: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, (m, cols)).astype(np.float32))


def poisoned(m: int, cols: int) -> ChunkRows:
    x = ChunkRows.empty(m, cols, "cpu")
    for t in (x.f32, x.half, x.scale):
        if t is not None:
            t.fill_(torch.nan)
    return x


@ORDERS
def test_every_block_of_32_keeps_its_elements(order):
    at = positions(order, 128)
    assert torch.equal(at // 32, torch.arange(128) // 32)
    assert sorted(at.tolist()) == list(range(128))


@ORDERS
@pytest.mark.parametrize("cols", [32, 96, 160])
def test_halves_keep_eleven_bits_of_rows_of_any_size(cols, order):
    x = poisoned(4, cols)
    sizes = torch.tensor([1.0, 90_000.0, 1e-20, 3e30])
    x.f32.copy_(normal(4, cols) * sizes[:, None])
    halve(x, replace(TUNING, order=order))
    got = values(x, order)
    error = (got - x.f32.double()).abs()
    assert (error <= 2**-11 * x.f32.double().abs() + 2**-39 * x.f32.double().abs().amax(1, keepdim=True)).all()
    assert ((x.half.abs().amax(1) >= 2**14) & (x.half.abs().amax(1) <= 2**15)).all()
    assert torch.equal(torch.log2(x.scale), torch.log2(x.scale).round())


@ORDERS
def test_halves_are_the_rows_over_a_power_of_two_rounded_once(order):
    x = poisoned(5, 96)
    x.f32.copy_(normal(5, 96) * torch.tensor([1.0, 7e4, 3e-9, 1e25, 0.4])[:, None])
    halve(x, replace(TUNING, order=order))
    scale = torch.exp2(torch.floor(torch.log2(x.f32.abs().amax(1))) - 14)
    assert torch.equal(x.scale, scale)
    expected = (x.f32 / scale[:, None]).half()
    assert torch.equal(x.half[:, positions(order, 128)[:96]].view(torch.int16), expected.view(torch.int16))


def test_zeros_stay_zeros_and_what_is_not_finite_shows():
    x = poisoned(3, 64)
    x.f32.copy_(normal(3, 64))
    x.f32[0] = 0
    x.f32[1, 5] = torch.nan
    x.f32[2, 5] = torch.inf
    halve(x)
    assert not x.half[0].any()
    assert torch.isfinite(x.scale[0])
    for row in (1, 2):
        assert not torch.isfinite(values(x, TUNING.order)[row, 5])


def test_rows_off_the_block_have_no_halves():
    x = poisoned(2, 60)
    assert x.half is None
    x.f32.copy_(normal(2, 60))
    halve(x)


@ORDERS
@pytest.mark.parametrize("cols", [64, 96, 60])
def test_the_norm_fills_every_form(cols, order):
    x, weight = normal(3, cols) * 5, normal(1, cols, seed=1)[0]
    out = poisoned(3, cols)
    rms_norm_rows(x, weight, out, 1e-6, replace(TUNING, order=order))
    expected = rms_norm_reference(x.double(), weight.double(), 1e-6).f32
    assert (out.f32 - expected).norm() / expected.norm() < 1e-6
    if out.half is not None:
        assert (values(out, order) - out.f32).norm() / out.f32.norm() < 3e-4


def test_a_wave_s_rows_come_to_the_scale_of_their_largest_part():
    half = (normal(5, 96) * 100).half()
    parts = torch.tensor([[1.0, 2**8, 1], [2**-8, 2**-8, 2**-8], [4, 4, 1], [1, 2**-40, 1], [1, 2, 3]])
    before = half.clone()
    scale = torch.full((5,), torch.nan)
    level(half, parts, scale, torch.tensor([0, 1, 4, 5], dtype=torch.int32), 1, n_programs=2)
    assert torch.equal(scale[1:4], torch.tensor([2**-8, 4.0, 1.0]))
    assert scale[[0, 4]].isnan().all()
    assert torch.equal(half[[0, 4]], before[[0, 4]])
    meant = before.double() * parts.double().repeat_interleave(32, 1)
    error = (half.double() * scale.double()[:, None] - meant)[1:4].abs()
    assert (error <= 2**-24 * scale[1:4, None]).all()
