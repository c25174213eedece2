"""The products of a chunk in Triton's interpreter: every format against float64, and bits that depend on a row alone."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from hotset.kernels.chunk_dense import dense
from hotset.kernels.chunk_plan import ChunkPlan
from hotset.kernels.grouped import GroupedBuffers, combine_rows, down_wave, gate_up_wave
from hotset.kernels.half import ChunkRows, halve
from hotset.kernels.tuning import ChunkTile, chunk_tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import SpanLayout
from hotset.quant.tiles import GAIN, ORDER_WARP, ORDER_WARPGROUP, element_at
from samples import BY_NAME

pytestmark = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # NumPy's, where exp(-gate) is infinite

ROLES = ("gate", "up", "down")
TILED = pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.tile], ids=lambda f: f.name)
ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
ORDERS = pytest.mark.parametrize("order", [ORDER_WARPGROUP, ORDER_WARP], ids=["warpgroup", "warp"])
SMALL = ChunkTile(rows=128, tokens=8, few=2, depth=64, warps=4, stages=1)
TUNING = replace(
    chunk_tuning_for(torch.device("cpu")), gate_up=SMALL, down=SMALL, dense=SMALL, narrow=SMALL, float32=SMALL
)


@triton.jit
def tile_kernel(
    base,
    out,
    padded_rows,
    COLS: tl.constexpr,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    ORDER: tl.constexpr,
    R: tl.constexpr,
):
    first = tl.program_id(0) * R
    step = tl.program_id(1)
    value = TILE(base, first, step, padded_rows, COLS, R, ORDER)
    k = step * UNIT + element_at(tl.arange(0, UNIT), ORDER)
    tl.store(out + (first + tl.arange(0, R))[:, None] * COLS + k[None, :], value.to(tl.float32))


def columns(fmt) -> int:
    return {1: 96, 32: 160, 64: 192, 256: 512}[fmt.block]


def relative_rms(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


@TILED
@ORDERS
def test_a_tile_has_the_reference_s_values_in_float16(fmt, order, matrix):
    w = matrix(fmt.name, 64, columns(fmt))
    layout = w.layout
    n_steps = layout.cols // fmt.tile_unit if order == ORDER_WARPGROUP else 1  # formats do not see the order
    out = torch.full((64, layout.cols), torch.nan)
    tile_kernel[(2, n_steps)](w.data, out, 64, COLS=layout.cols, TILE=fmt.tile, UNIT=fmt.tile_unit, ORDER=order, R=32)
    gain = GAIN if fmt.integer else 1
    values = torch.from_numpy(layout.dequantize(w.data.numpy()))
    out, values = (t[:, : n_steps * fmt.tile_unit] for t in (out, values))
    if fmt.name in ("F16", "BF16"):
        assert torch.equal(out, values.half().float())
    # Two roundings of 2^-11: the scale's and the product's; a minimum's besides.
    size = values.abs().amax(1, keepdim=True)
    assert relative_rms(out / gain, values.double()) < 5e-4
    assert ((out / gain - values).abs() <= 2**-10 * size).all()


def chunk_rows(x: torch.Tensor) -> ChunkRows:
    rows = ChunkRows.empty(*x.shape, "cpu")
    for t in (rows.half, rows.scale):
        if t is not None:
            t.fill_(torch.nan)
    rows.f32.copy_(x)
    halve(rows, TUNING)
    return rows


def normal(m: int, cols: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, (m, cols)).astype(np.float32))


@ALL
@pytest.mark.parametrize("m", [1, 11])
def test_a_dense_product_is_close_to_float64(fmt, m, matrix):
    w = matrix(fmt.name, 60, columns(fmt) // (1 + (fmt.block == 256)))
    x = normal(m, w.layout.cols) * 300
    values = torch.from_numpy(w.layout.dequantize(w.data.numpy())).double()
    out = torch.full((m, 64), torch.nan)
    dense(chunk_rows(x), w, out, tuning=TUNING)
    expected = x.double() @ values.T
    limit = 1e-6 if fmt.name == "F32" else 1e-3
    assert relative_rms(out[:, :60], expected) < limit
    assert (out[:, :60] - expected).abs().max() < 4 * limit * expected.abs().max()
    assert not out[:, 60:].any()


@pytest.mark.parametrize("name", ["Q4_K", "MXFP4", "F32"])
def test_a_dense_product_can_be_added_to_what_is_there(name, matrix):
    w = matrix(name, 60, 256)
    x = normal(3, 256)
    before = normal(3, 64, seed=1)
    out, added = torch.empty(3, 64), before.clone()
    dense(chunk_rows(x), w, out, tuning=TUNING)
    dense(chunk_rows(x), w, added, add=True, tuning=TUNING)
    assert torch.equal(added, before + out)


def test_columns_off_the_block_are_multiplied_in_float32(matrix):
    w = matrix("F16", 32, 60)
    x = normal(5, 60)
    out = torch.full((5, 32), torch.nan)
    dense(chunk_rows(x), w, out, tuning=TUNING)
    expected = x.double() @ torch.from_numpy(w.layout.dequantize(w.data.numpy())).double().T
    assert relative_rms(out, expected) < 1e-6


@pytest.mark.parametrize("name", ["Q5_0", "F32"])
def test_a_row_of_a_dense_product_has_the_same_bits_alone(name, matrix):
    tile = replace(SMALL, few=8)
    tuning = replace(TUNING, dense=tile, narrow=tile, float32=tile)
    w = matrix(name, 32, 96)
    x = normal(11, w.layout.cols)
    together = torch.empty(11, 32)
    dense(chunk_rows(x), w, together, tuning=tuning)
    for m in (0, 7, 8, 10):
        alone = torch.empty(1, 32)
        dense(chunk_rows(x[m : m + 1]), w, alone, tuning=tuning)
        assert torch.equal(alone[0], together[m])


class Experts:
    """Experts in spans of their own somewhere in memory, and what a chunk makes of them."""

    def __init__(self, matrix, names: tuple[str, str, str], n: int, d_model: int, d_ff: int) -> None:
        shapes = ((d_ff, d_model), (d_ff, d_model), (d_model, d_ff))
        self.n = n
        self.spans, self.values = [], []
        for e in range(n):
            made = [
                matrix(name, *shape, seed=10 * e + i, scale=0.002 if BY_NAME[name].integer else None)
                for i, (name, shape) in enumerate(zip(names, shapes, strict=True))
            ]
            self.layout = SpanLayout(ROLES, tuple(w.layout for w in made))
            self.spans.append(torch.zeros(self.layout.n_bytes, dtype=torch.uint8))
            for role, w in zip(ROLES, made, strict=True):
                start = self.layout.start(role)
                self.spans[e][start : start + w.layout.n_bytes] = w.data
            self.values.append([torch.from_numpy(w.layout.dequantize(w.data.numpy())).double() for w in made])

    def run(self, x, picks, weights, waves=None, tuning=TUNING) -> torch.Tensor:
        """Add the experts to zeros; `waves` are lists of experts, whose addresses are there in their own wave alone."""
        waves = waves or [list(range(self.n))]
        order = torch.tensor([e for wave in waves for e in wave], dtype=torch.int32)
        ranks = torch.tensor(np.cumsum([0] + [len(w) for w in waves]), dtype=torch.int32)
        plan = ChunkPlan.empty(len(x) + 3, picks.shape[1], self.n, len(waves), tuning.expert_tokens, "cpu")
        plan.make(picks, order, ranks)
        buffers = GroupedBuffers.empty(self.layout, plan.pairs.numel(), "cpu", tuning)
        for t in (buffers.hidden, buffers.hidden_part, buffers.hidden_scale, buffers.z, buffers.z_scale):
            if t is not None:
                t.fill_(torch.nan)
        rows = chunk_rows(x)
        for w, wave in enumerate(waves):
            address = torch.full((self.n,), -1, dtype=torch.int64)
            for e in wave:
                address[e] = self.spans[e].data_ptr()
            gate_up_wave(rows, address, plan, w, self.layout, buffers, tuning)
            down_wave(address, plan, w, self.layout, buffers, tuning)
        out = torch.zeros(len(x), self.layout.matrix("down").rows)
        combine_rows(buffers, weights, out)
        return out

    def expected(self, x, picks, weights) -> torch.Tensor:
        out = torch.zeros(len(x), self.values[0][2].shape[0], dtype=torch.float64)
        for m, row in enumerate(picks.tolist()):
            for j, e in enumerate(row):
                gate, up, down = self.values[e]
                one = x[m].double()
                hidden = torch.nn.functional.silu(gate @ one) * (up @ one)
                out[m] += weights[m, j].double() * (down @ hidden)
        return out


def chunk(m: int, k: int, n: int, d_model: int):
    rng = np.random.default_rng(5)
    picks = torch.from_numpy(np.stack([rng.permutation(n)[:k] for _ in range(m)]).astype(np.int32))
    weights = torch.from_numpy(rng.uniform(0.1, 1, (m, k)).astype(np.float32))
    return normal(m, d_model), picks, weights


@pytest.mark.parametrize(
    ("names", "d_model", "d_ff", "limit"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), 256, 256, 1e-3),
        (("Q5_K", "Q6_K", "Q5_0"), 256, 96, 1e-3),
        (("Q8_0", "BF16", "Q4_0"), 96, 32, 1e-3),
        (("F16", "F16", "Q8_0"), 96, 64, 1e-3),
        (("F16", "Q4_0", "F32"), 96, 60, 1e-3),
        (("MXFP4", "MXFP4", "MXFP4"), 96, 32, 1e-3),
        (("IQ3_S", "Q2_K", "NVFP4"), 256, 64, 1e-3),
        (("F32", "F32", "F32"), 40, 24, 1e-6),
        (("F32", "F32", "F16"), 60, 48, 1e-6),
    ],
    ids=lambda p: "-".join(p) if isinstance(p, tuple) else str(p),
)
def test_the_step_is_that_of_the_dequantised_experts(names, d_model, d_ff, limit, matrix):
    experts = Experts(matrix, names, 4, d_model, d_ff)
    x, picks, weights = chunk(7, 2, 3, d_model)  # expert 3 has no tokens
    expected = experts.expected(x, picks, weights)
    got = experts.run(x, picks, weights)
    assert relative_rms(got, expected) < limit
    assert (got - expected).abs().max() < 5 * limit * expected.abs().max()


# One width for all tiles: NumPy, which multiplies for the interpreter, may add in another order for another shape.
@pytest.mark.parametrize("names", [("Q4_0", "Q4_0", "Q8_0"), ("F32", "F32", "F32")], ids="-".join)
def test_neither_waves_nor_chunks_nor_neighbours_change_a_bit(names, matrix):
    tile = ChunkTile(rows=32, tokens=4, few=4, depth=64, warps=4, stages=1)
    tuning = replace(TUNING, gate_up=tile, down=tile)
    experts = Experts(matrix, names, 4, 64, 32)
    x, picks, weights = chunk(11, 2, 4, 64)
    whole = experts.run(x, picks, weights, tuning=tuning)
    assert torch.equal(experts.run(x, picks, weights, [[3], [], [0], [1, 2]], tuning), whole)
    parts = [slice(0, 7), slice(7, 11)]
    assert torch.equal(torch.cat([experts.run(x[p], picks[p], weights[p], tuning=tuning) for p in parts]), whole)


def test_one_expert_may_take_every_row(matrix):
    experts = Experts(matrix, ("Q4_0", "Q4_0", "Q4_0"), 4, 32, 32)
    x, _, weights = chunk(19, 1, 4, 32)
    picks = torch.full((19, 1), 2, dtype=torch.int32)
    assert relative_rms(experts.run(x, picks, weights), experts.expected(x, picks, weights)) < 1e-3


def test_the_hidden_product_may_pass_float16(matrix):
    for name, tiny in (("F32", 0), ("F16", 2**-12), ("Q8_0", 2**-12)):
        experts = Experts(matrix, (name, name, name), 1, 32, 32)
        layout = experts.layout
        for role, value in (("gate", 300), ("up", 300), ("down", 1)):
            start = layout.start(role)
            part = experts.spans[0][start : start + layout.matrix(role).n_bytes].numpy()
            if name == "Q8_0":
                layout.matrix(role).plane(part, 0)[...] = 0x01010101
            layout.matrix(role).plane(part, -1 if name == "Q8_0" else 0)[...] = value / 32
        out = experts.run(torch.ones(1, 32), torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1))
        assert ((out / 90_000 - 1).abs() <= tiny).all()


def test_picks_are_summed_in_their_order_on_top_of_what_is_there():
    z = torch.tensor([[1e8], [1.0], [-1e8]]).expand(3, 300).contiguous()
    out = torch.full((1, 300), 2.0)
    combine_rows(GroupedBuffers(z, None, None, z, None), torch.ones(1, 3), out)
    total = ((np.float32(2) + np.float32(1e8)) + np.float32(1)) - np.float32(1e8)
    assert torch.equal(out, torch.full((1, 300), float(total)))
