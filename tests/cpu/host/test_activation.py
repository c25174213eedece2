"""Norm, quantisation and SwiGLU against NumPy: float64 for the values, float32 step by step for the int8 rows."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from hotset.host.activation import exp32, quantized, rms_norm, swiglu


def twin(f: np.ndarray) -> tuple[np.ndarray, ...]:
    """q, d, m, h of float32 rows, every step rounded as in quantize_row."""
    x = f.reshape(len(f), -1, 32)
    top = np.abs(x).max(-1)
    with np.errstate(divide="ignore"):
        inverse = np.where(top > 0, np.float32(127) / top, np.float32(0))
    q = np.rint(x * inverse[..., None]).astype(np.int8)
    d = top / np.float32(127)
    m = d * q.sum(-1, dtype=np.int32).astype(np.float32)
    return q.reshape(f.shape), d, m, q.reshape(len(f), -1, 16).sum(-1, dtype=np.int32)


def awkward_rows(n: int = 96) -> np.ndarray:
    rng = np.random.default_rng(4)
    rows = [rng.standard_normal(n) * scale for scale in (1, 1e-30, 1e30, 1e-3)]
    rows += [np.zeros(n), np.full(n, -3.5), np.where(np.arange(n) % 32 == 31, -1e6, 1e-6)]
    rows += [np.where(np.arange(n) % 32, np.arange(n) % 32 - 15.5, 127)]  # halves, to be rounded to even
    return np.array(rows, np.float32)


@pytest.mark.parametrize("m", [1, 8, 16, 40], ids=lambda m: f"{m} rows")
def test_int8_rows_are_those_of_the_numpy_twin_bit_for_bit(m):
    f = np.resize(awkward_rows(), (m, 96))
    a = quantized(f, integers=True)
    for found, expected in zip((a.q, a.d, a.m, a.h), twin(f), strict=True):
        assert found.dtype == expected.dtype
        assert np.array_equal(found.view(np.uint8), expected.view(np.uint8))
    assert a.f is f


def test_tiny_activations_quantise_to_something_tiny():
    f = np.full((1, 32), 1e-41, np.float32)
    f[0, ::2] = 0
    a = quantized(f, integers=True)
    assert np.isfinite(a.d).all()
    assert np.abs(a.q * a.d[0, 0]).max() <= 1e-38


@pytest.mark.parametrize("integers", [True, False])
@pytest.mark.parametrize("m", [1, 16], ids=lambda m: f"{m} rows")
def test_norm_divides_by_the_root_mean_square(integers, m):
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((m, 96)) * 10.0 ** rng.integers(-3, 4, (m, 1))).astype(np.float32)
    weight = rng.standard_normal(96, np.float32)
    a = rms_norm(x, weight, 1e-6, integers=integers)
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * weight
    assert np.allclose(a.f, exact, rtol=3e-7, atol=0)
    assert a.has_integers is integers
    if integers:
        assert np.array_equal(a.q, twin(a.f)[0])


def test_norm_of_zeros_is_zero_and_of_large_rows_finite():
    x = np.array([[0] * 32, [3e19] * 32], np.float32)  # squares pass float32
    f = rms_norm(x, np.ones(32, np.float32), 1e-6, integers=False).f
    assert not f[0].any()
    assert np.allclose(f[1], 1)


def test_rows_that_no_block_of_32_divides_stay_float():
    a = quantized(np.ones((2, 40), np.float32), integers=True)
    assert not a.has_integers


@pytest.mark.parametrize("m", [1, 16], ids=lambda m: f"{m} rows")
def test_swiglu_is_silu_of_gate_times_up_over_the_real_columns(m):
    rng = np.random.default_rng(6)
    gate, up = (rng.normal(0, 4, (m, 80)).astype(np.float32) for _ in range(2))
    a = swiglu(gate, up, 64, integers=True)
    g = gate[:, :64].astype(np.float64)
    assert a.f.shape == (m, 64)
    assert np.allclose(a.f, g / (1 + np.exp(-g)) * up[:, :64], rtol=1e-6, atol=0)
    assert np.array_equal(a.q, twin(a.f)[0])


def test_swiglu_passes_what_float16_could_not_hold():
    gate, up = np.full((1, 32), 300, np.float32), np.full((1, 32), 300, np.float32)
    gate[0, 1], gate[0, 2], gate[0, 3] = -300, 0, -1e30
    f = swiglu(gate, up, 32, integers=False).f[0]
    assert f[0] == 90_000
    assert np.abs(f[1:4]).max() < 1e-3
    assert np.isfinite(f).all()


@pytest.fixture(scope="module")
def exponential():
    @numba.njit(error_model="numpy")
    def fill(x, out):
        for i in range(x.size):
            out[i] = exp32(x[i])

    def exponential(x):
        out = np.empty_like(x)
        fill(x, out)
        return out

    return exponential


def test_exp32_is_right_to_two_units_in_the_last_place(exponential):
    x = np.concatenate([np.linspace(-87, 88, 200_001), np.linspace(-1e-3, 1e-3, 1001)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    units = np.abs(exponential(x) - exact) / np.spacing(exact.astype(np.float32))
    assert units.max() <= 2


def test_exp32_beyond_its_range_stays_at_the_ends(exponential):
    ends = exponential(np.array([-87, 88], np.float32))
    found = exponential(np.array([-88, -1e4, -np.inf, 89, 1e30, np.inf], np.float32))
    assert found.tolist() == [ends[0]] * 3 + [ends[1]] * 3
    assert exponential(np.zeros(1, np.float32))[0] == 1


def test_exp32_of_nan_is_nan(exponential):
    assert np.isnan(exponential(np.array([np.nan] * 17, np.float32))).all()
