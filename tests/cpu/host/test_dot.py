"""Inner products of every format: close to float64, the same bits at every level of the processor and beside any other rows."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from hotset.host import dot
from hotset.host.activation import Activation, quantized
from hotset.host.cpu import levels
from hotset.host.matmul import grouped_matmul
from hotset.quant.formats import FORMATS
from hotset.quant.random import put_scales, random_blocks, random_fields, scales_shape
from samples import BY_NAME

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
INTEGER = pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.integer], ids=lambda f: f.name)
ROWS = pytest.mark.parametrize("rows", [1, 15, 16, 17, 37, 60])


# Compiling takes a second per format and level. These use every part of the emitter that differs between levels.
AT_EVERY_LEVEL = ("Q8_0", "Q5_K", "MXFP4", "IQ2_XS")


def levels_of(fmt) -> tuple[str, ...]:
    """The levels to test a format at: all that run here for a few formats, the best and the portable one for the others."""
    return levels() if fmt.name in AT_EVERY_LEVEL else tuple(dict.fromkeys((levels()[0], levels()[-1])))


def columns(fmt) -> tuple[int, ...]:
    return {1: (1, 37, 256, 704), 32: (32, 704, 768), 64: (64, 704, 768), 256: (256, 768)}[fmt.block]


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


def assert_close(found: np.ndarray, w: np.ndarray, x: np.ndarray, limit: float = 1e-6) -> None:
    """Found = x w^T to `limit` of the sum of magnitudes, which is what rounding is measured against."""
    x = x.astype(np.float64)
    error = np.abs(found - x @ w.T) / np.maximum(np.abs(x) @ np.abs(w).T, 1e-300)
    assert error.max() <= limit, f"{error.max():.2e} at {np.unravel_index(error.argmax(), error.shape)}"


@ALL
@ROWS
def test_float_products_are_those_of_the_dequantised_weights(fmt, rows, product, activations):
    for cols in columns(fmt):
        p = product(fmt, rows, cols, random_blocks(fmt, rows, cols, seed=rows))
        x = activations(5, cols)
        assert_close(p.float_way(x), p.values, x)


@INTEGER
@ROWS
def test_integer_products_are_those_of_the_quantised_rows_with_the_same_bits_at_every_level(
    fmt, rows, product, activations
):
    for cols in columns(fmt):
        p = product(fmt, rows, cols, random_blocks(fmt, rows, cols, seed=rows))
        a = quantized(activations(5, cols), integers=True)
        found = [p(a, dot.INTEGER, level)[:, :rows] for level in levels_of(fmt)]
        assert_close(found[0], p.values, a.q.astype(np.float64) * np.repeat(a.d, 32, axis=1).astype(np.float64))
        for level, other in zip(levels_of(fmt), found, strict=True):
            assert np.array_equal(bits(other), bits(found[0])), level


@INTEGER
def test_one_large_value_among_small_ones_is_kept(fmt, product):
    cols = columns(fmt)[-1]
    p = product(fmt, 37, cols, random_blocks(fmt, 37, cols, seed=1))
    x = np.random.default_rng(2).normal(0, 1e-2, (3, cols)).astype(np.float32)
    x[:, 77] = 1e4
    exact = x.astype(np.float64) @ p.values.T
    found = p(quantized(x, integers=True), dot.INTEGER, levels()[0])[:, :37]
    assert np.linalg.norm(found - exact) <= 1e-2 * np.linalg.norm(exact)


def bare_quants(fmt, rows: int, cols: int, byte: int | None) -> np.ndarray:
    """Blocks whose scales are 1 and minima 0; quants random, or all bytes of the quants `byte`."""
    fields = random_fields(fmt, rows, cols, seed=3)
    for name, field in fields.items():
        if byte is not None:
            field.view(np.uint8)[...] = byte
        if name in ("scale", "scale_minimum") and fmt.table is None:
            field[...] = 1
    ones = np.ones(scales_shape(fmt, fields))
    ones[..., 1:] = 0  # the minimum
    put_scales(fmt, fields, ones)
    return fmt.blocks_of_fields(fields)


@pytest.mark.parametrize(
    ("fmt", "level"),
    [(fmt, level) for fmt in FORMATS.values() if fmt.integer for level in levels_of(fmt)],
    ids=lambda p: getattr(p, "name", p),
)
@pytest.mark.parametrize("byte", [None, 0x00, 0x80, 0xFF, 0x7F], ids=str)
def test_sums_of_byte_products_are_exact(fmt, level, byte, product):
    rows, cols = 17, 256
    p = product(fmt, rows, cols, bare_quants(fmt, rows, cols, byte))
    rng = np.random.default_rng(7)
    q = rng.integers(-127, 128, (6, cols)).astype(np.int8)
    q[1], q[2], q[3] = 127, -127, 0
    q[4, ::2], q[4, 1::2] = 127, -127
    h = q.reshape(6, -1, 16).sum(-1, dtype=np.int32)
    ones = np.ones((6, cols // 32), np.float32)
    a = Activation(np.full(q.shape, np.nan, np.float32), q, ones, h.reshape(6, -1, 2).sum(-1).astype(np.float32), h)
    assert np.array_equal(p(a, dot.INTEGER, level)[:, :rows], q.astype(np.float64) @ p.values.T)


@ALL
def test_a_row_of_activations_gives_the_same_bits_alone_and_among_others(fmt, product, activations):
    rows, cols = 20, 256
    p = product(fmt, rows, cols, random_blocks(fmt, rows, cols))
    x = activations(9, cols)
    for way in (p.float_way, p.integer_way) if fmt.integer else (p.float_way,):
        alone = np.concatenate([way(x[i : i + 1]) for i in range(9)])
        for m in range(2, 10):
            assert np.array_equal(bits(way(x[:m])), bits(alone[:m])), m


@ALL
def test_threads_do_not_change_bits(fmt, product, activations):
    p = product(fmt, 60, 256, random_blocks(fmt, 60, 256))
    x = activations(3, 256)
    before = numba.get_num_threads()
    way = p.integer_way if fmt.integer else p.float_way
    try:
        found = []
        for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(threads)
            found.append(way(x))
    finally:
        numba.set_num_threads(before)
    assert np.array_equal(bits(found[0]), bits(found[1]))


@ALL
def test_padded_rows_give_zero(fmt, product, activations):
    p = product(fmt, 3, 256, random_blocks(fmt, 3, 256))
    for way in (dot.FLOAT, dot.INTEGER) if fmt.integer else (dot.FLOAT,):
        assert not p(quantized(activations(2, 256), integers=True), way)[:, 3:].any()


@ALL
@pytest.mark.parametrize("scale", [0.0, 2.0**-24, 6.0e-5, 65504.0], ids=["zero", "least", "subnormal", "largest"])
def test_extreme_scales(fmt, scale, product, activations):
    rows, cols = 17, 256
    fields = random_fields(fmt, rows, cols, scale=scale)
    p = product(fmt, rows, cols, fmt.blocks_of_fields(fields))
    x = activations(3, cols)
    assert_close(p.float_way(x), p.values, x)
    if fmt.integer:
        a = quantized(x, integers=True)
        assert_close(p(a, dot.INTEGER)[:, :rows], p.values, a.q * np.repeat(a.d, 32, axis=1).astype(np.float64))


@ALL
def test_zero_activations_give_zero(fmt, product):
    p = product(fmt, 17, 256, random_blocks(fmt, 17, 256))
    zero = np.zeros((2, 256), np.float32)
    assert not p.float_way(zero).any()
    assert not fmt.integer or not p.integer_way(zero).any()


@ALL
def test_a_poisoned_weight_shows_in_its_row_alone(fmt, product, activations):
    if fmt.planes[-1].dtype == "u1":
        pytest.skip(f"{fmt.name}'s scales have no NaN")
    fields = random_fields(fmt, 20, 256)
    scales = np.ones(scales_shape(fmt, fields))
    scales[11, 0] = np.nan
    put_scales(fmt, fields, scales)
    p = product(fmt, 20, 256, fmt.blocks_of_fields(fields))
    for way in (p.float_way, p.integer_way) if fmt.integer else (p.float_way,):
        assert np.isnan(way(activations(5, 256))).any(0).nonzero()[0].tolist() == [11]


@ALL
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_poisoned_activation_shows_in_its_row_alone(fmt, poison, product, activations):
    p = product(fmt, 17, 256, random_blocks(fmt, 17, 256))
    x = activations(6, 256)
    x[2, 70] = poison
    for way in (p.float_way, p.integer_way) if fmt.integer else (p.float_way,):
        assert (~np.isfinite(way(x))).all(1).nonzero()[0].tolist() == [2]


@pytest.mark.parametrize(("name", "way"), [("Q4_K", dot.INTEGER), ("F16", dot.FLOAT)])
def test_a_list_of_experts_takes_each_its_own_rows(name, way, product, activations):
    fmt = BY_NAME[name]
    experts = [product(fmt, 20, 256, random_blocks(fmt, 20, 256, seed)) for seed in range(3)]
    a = quantized(activations(4, 256), integers=True)
    starts = np.array([0, 6, 6, 9])  # the second has no rows
    x_rows = np.array([3, 1, 0, 2, 3, 3, 1, 2, 0])
    out_rows = np.array([8, 0, 4, 2, 6, 1, 3, 7, 5])
    out = np.full((9, 32), np.nan, np.float32)
    grouped_matmul(fmt.ggml_type, way)(
        np.array([e.planes.ctypes.data for e in experts]), starts, x_rows, out_rows, 2, experts[0].layout.n_blocks, a.f, a.q, a.d, a.m, a.h, out
    )  # fmt: skip
    for i, e in enumerate(experts):
        alone = e(a, way)
        for at in range(starts[i], starts[i + 1]):
            assert np.array_equal(bits(out[out_rows[at]]), bits(alone[x_rows[at]]))
