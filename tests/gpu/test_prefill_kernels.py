"""The kernels of a chunk on a real GPU at real sizes: close to float64, and the same bits in every tile, chunk, wave and company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotset.kernels.chunk_attention import chunk_attention
from hotset.kernels.chunk_dense import dense
from hotset.kernels.chunk_plan import ChunkPlan
from hotset.kernels.grouped import GroupedBuffers, combine_rows, down_wave, gate_up_wave
from hotset.kernels.half import ChunkRows, halve, rms_norm_rows
from hotset.kernels.kv_cache import KVCache, floats, quantised_reference
from hotset.kernels.matvec import DeviceMatrix
from hotset.kernels.norm import rms_norm_reference
from hotset.kernels.rows import Rows
from hotset.kernels.tuning import ChunkTuning, chunk_tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.random import random_weights

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
BY_NAME = {f.name: f for f in FORMATS.values()}
CUDA = torch.device("cuda")


def tunings() -> list[ChunkTuning]:
    """Tiles of other widths than the device's own: what must not change a bit."""
    own = chunk_tuning_for(CUDA)
    variants = []
    for tokens, few in ((16, 16), (32, 16), (64, 64), (128, 16)):
        tiles = {name: replace(getattr(own, name), tokens=tokens, few=few) for name in ("gate_up", "down", "dense")}
        variants.append(replace(own, **tiles, narrow=tiles["dense"]))
    return variants


def planes(layout: MatrixLayout, seed: int) -> np.ndarray:
    """Random weights of a trained matrix's size."""
    return layout.from_blocks(random_weights(layout.fmt, layout.rows, layout.cols, 0.02, seed))


def matrix(fmt, rows: int, cols: int, seed: int = 0) -> DeviceMatrix:
    layout = MatrixLayout(fmt, rows, cols)
    return DeviceMatrix(layout, torch.from_numpy(planes(layout, seed)).cuda())


def values(w: DeviceMatrix) -> torch.Tensor:
    return torch.from_numpy(w.layout.dequantize(w.data.cpu().numpy())).cuda()


def normal(m: int, cols: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, cols, generator=torch.Generator().manual_seed(seed)).cuda()


def chunk_rows(x: torch.Tensor) -> ChunkRows:
    rows = ChunkRows.empty(*x.shape, "cuda")
    rows.f32.copy_(x)
    halve(rows)
    return rows


def product(x: ChunkRows, w: DeviceMatrix, **options) -> torch.Tensor:
    out = torch.full((x.shape[0], w.layout.padded_rows), torch.nan, device="cuda")
    dense(x, w, out, **options)
    return out


def relative_rms(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got.double() - expected).norm() / expected.norm()).item()


def only(x: ChunkRows, part: slice) -> ChunkRows:
    return ChunkRows(*(None if t is None else t[part].clone() for t in (x.f32, x.half, x.scale)))


@ALL
@pytest.mark.parametrize(("rows", "cols"), [(1024, 2048), (2880, 2880), (512, 768)])
def test_dense_products_are_close_to_float64(fmt, rows, cols):
    if cols % fmt.block:
        pytest.skip(f"{fmt.name} has no rows of {cols}")
    w = matrix(fmt, rows, cols)
    for m in (1, 33, 300):
        x = normal(m, cols) * 100
        expected = x.double() @ values(w).double().T
        got = product(chunk_rows(x), w)
        limit = 1e-6 if fmt.name == "F32" else 1e-3
        assert relative_rms(got, expected) < limit
        assert (got - expected).abs().max() < 5 * limit * expected.abs().max()


@ALL
def test_a_dense_row_has_the_same_bits_in_every_tile_and_company(fmt):
    w = matrix(fmt, 1024, 2048)
    x = chunk_rows(normal(301, 2048))
    whole = product(x, w)
    for tuning in tunings():
        assert torch.equal(product(x, w, tuning=tuning), whole)
    for part in (slice(0, 1), slice(5, 14), slice(0, 33), slice(100, 229)):
        assert torch.equal(product(only(x, part), w), whole[part])
    before = normal(301, 1024, seed=1)
    added = before.clone()
    dense(x, w, added, add=True)
    assert torch.equal(added, before + whole)


class Experts:
    """Spans of experts in one pool, the same chunk for all of them."""

    def __init__(self, names: tuple[str, str, str], n: int, d_model: int = 2048, d_ff: int = 768) -> None:
        shapes = ((d_ff, d_model), (d_ff, d_model), (d_model, d_ff))
        kinds = [MatrixLayout(BY_NAME[name], *shape) for name, shape in zip(names, shapes, strict=True)]
        self.layout = SpanLayout(("gate", "up", "down"), tuple(kinds))
        self.pool = torch.zeros(n, self.layout.n_bytes, dtype=torch.uint8, device="cuda")
        self.n = n
        for e in range(n):
            for i, (start, kind) in enumerate(zip(self.layout.starts, kinds, strict=True)):
                made = torch.from_numpy(planes(kind, seed=10 * e + i))
                self.pool[e, start : start + kind.n_bytes] = made.cuda()

    def values(self, e: int) -> list[torch.Tensor]:
        data = self.pool[e].cpu().numpy()
        parts = zip(self.layout.starts, self.layout.matrices, strict=True)
        return [torch.from_numpy(m.dequantize(data[at : at + m.n_bytes])).cuda().double() for at, m in parts]

    def run(
        self,
        x: ChunkRows,
        picks: torch.Tensor,
        weights: torch.Tensor,
        waves: list[list[int]] | None = None,
        tuning: ChunkTuning | None = None,
    ) -> torch.Tensor:
        waves = waves or [list(range(self.n))]
        tuning = tuning or chunk_tuning_for(CUDA)
        order = torch.tensor([e for wave in waves for e in wave], dtype=torch.int32, device="cuda")
        ranks = torch.tensor(np.cumsum([0] + [len(w) for w in waves]), dtype=torch.int32, device="cuda")
        plan = ChunkPlan.empty(len(picks), picks.shape[1], self.n, len(waves), tuning.expert_tokens, "cuda")
        buffers = GroupedBuffers.empty(self.layout, picks.numel(), "cuda", tuning)
        for t in (buffers.hidden, buffers.hidden_part, buffers.hidden_scale, buffers.z, buffers.z_scale):
            if t is not None:
                t.fill_(torch.nan)
        address = self.pool.data_ptr() + torch.arange(self.n, device="cuda") * self.layout.n_bytes
        out = torch.zeros(len(picks), self.layout.matrix("down").rows, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            plan.make(picks, order, ranks)
            for w in range(len(waves)):
                gate_up_wave(x, address, plan, w, self.layout, buffers, tuning)
                down_wave(address, plan, w, self.layout, buffers, tuning)
            combine_rows(buffers, weights, out)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return out

    def expected(self, x: torch.Tensor, picks: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(x), self.layout.matrix("down").rows, dtype=torch.float64, device="cuda")
        for e in range(self.n):
            row, j = torch.nonzero(picks == e, as_tuple=True)
            gate, up, down = self.values(e)
            one = x[row].double()
            hidden = torch.nn.functional.silu(one @ gate.T) * (one @ up.T)
            out.index_add_(0, row, weights[row, j].double()[:, None] * (hidden @ down.T))
        return out


def picks_of(m: int, k: int, n: int, seed: int = 0) -> torch.Tensor:
    """Random picks, a few experts much more often than the others, the last one never."""
    score = torch.rand(m, n, generator=torch.Generator().manual_seed(seed)) + torch.linspace(0.5, 0, n)
    score[:, -1] = -1
    return score.topk(k).indices.int().cuda()


EXPERTS = pytest.mark.parametrize(
    "names",
    [
        ("Q4_K", "Q4_K", "Q6_K"),
        ("Q5_K", "Q6_K", "Q5_0"),
        ("Q8_0", "Q8_0", "Q4_K"),
        ("F16", "Q4_0", "BF16"),
        ("F32",) * 3,
        ("MXFP4",) * 3,
        ("IQ2_XS", "Q3_K", "NVFP4"),
    ],
    ids="-".join,
)


@EXPERTS
@pytest.mark.parametrize("m", [40, 1000])
def test_the_step_of_a_chunk_is_close_to_float64(names, m):
    experts = Experts(names, n=12)
    x, picks = normal(m, 2048), picks_of(m, 4, 12)
    weights = torch.rand(m, 4, generator=torch.Generator().manual_seed(9)).cuda()
    expected = experts.expected(x, picks, weights)
    got = experts.run(chunk_rows(x), picks, weights)
    limit = 1e-5 if names[0] == "F32" else 1.5e-3
    assert relative_rms(got, expected) < limit
    assert (got - expected).abs().max() < 5 * limit * expected.abs().max()


@EXPERTS
def test_neither_tiles_nor_waves_nor_chunks_change_a_bit(names):
    experts = Experts(names, n=12)
    x, picks = chunk_rows(normal(700, 2048)), picks_of(700, 4, 12)
    weights = torch.rand(700, 4, generator=torch.Generator().manual_seed(9)).cuda()
    whole = experts.run(x, picks, weights)
    for tuning in tunings():
        assert torch.equal(experts.run(x, picks, weights, tuning=tuning), whole)
    assert torch.equal(experts.run(x, picks, weights, waves=[[7, 3], [], [11, 0, 1, 2], [4, 5, 6, 8, 9, 10]]), whole)
    for part in (slice(0, 9), slice(9, 300), slice(300, 700)):
        assert torch.equal(experts.run(only(x, part), picks[part].clone(), weights[part].clone()), whole[part])


@pytest.mark.parametrize(("m", "k", "n"), [(9, 8, 128), (4096, 8, 128), (1000, 4, 60), (4096, 8, 384)])
def test_the_plan_is_that_of_a_stable_sort(m, k, n):
    picks = picks_of(m, k, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1)).int().cuda()
    ranks = torch.tensor([0, n // 4, n // 4, n], dtype=torch.int32, device="cuda")
    plan = ChunkPlan.empty(4096, k, n, 3, 128, "cuda")
    plan.make(picks, order, ranks)
    rank_of = torch.empty(n, dtype=torch.int64, device="cuda")
    rank_of[order.long()] = torch.arange(n, device="cuda")
    by_rank = rank_of[picks.flatten().long()]
    assert torch.equal(plan.pairs[: m * k].long(), torch.sort(by_rank, stable=True).indices)
    counts = torch.bincount(by_rank, minlength=n)
    assert torch.equal(plan.counts[:n].long(), counts)
    starts = (counts.cumsum(0) - counts).tolist()
    tiles = [
        [e, start + at, min(128, count - at)]
        for e, start, count in zip(order.tolist(), starts, counts.tolist(), strict=True)
        for at in range(0, count, 128)
    ]
    assert plan.tiles[: len(tiles)].tolist() == tiles
    cuts = [0, n // 4, n // 4, n]
    assert plan.wave_pairs.tolist() == [int(counts[:c].sum()) for c in cuts]
    assert plan.wave_tiles.tolist() == [int(((counts[:c] + 127) // 128).sum()) for c in cuts]


@pytest.mark.parametrize("cols", [2048, 2880, 7168])
def test_the_norm_of_a_chunk_and_its_halves(cols):
    x, weight = normal(700, cols) * 30, normal(1, cols, seed=1)[0]
    out = ChunkRows.empty(700, cols, "cuda")
    rms_norm_rows(x, weight, out, 1e-6)
    expected = rms_norm_reference(x.double(), weight.double(), 1e-6).f32
    assert relative_rms(out.f32, expected) < 1e-6
    again = ChunkRows.empty(700, cols, "cuda")
    again.f32.copy_(out.f32)
    halve(again)
    assert torch.equal(again.half, out.half)
    assert torch.equal(again.scale, out.scale)
    mean_square = (out.half.double() * out.scale.double()[:, None]).square().mean(1)
    assert torch.allclose(mean_square, out.f32.double().square().mean(1), rtol=1e-3)


def rows_at(start: int, m: int) -> Rows:
    positions = torch.arange(start, start + m, dtype=torch.int32, device="cuda")
    zeros = torch.zeros_like(positions)
    return Rows(positions, positions, zeros, zeros + 1)


def attended(q: torch.Tensor, cache: KVCache, start: int) -> torch.Tensor:
    out = torch.full_like(q, torch.nan)
    chunk_attention(q, cache, rows_at(start, len(q)), cache.head_dim**-0.5, out)
    return out


def attention_reference(q: torch.Tensor, cache: KVCache, start: int) -> torch.Tensor:
    m, d = len(q), cache.head_dim
    n_heads = q.shape[1] // d
    k, v = floats(cache.k, cache.k_scale), floats(cache.v, cache.v_scale)
    k, v = (t[0, :, : start + m].double().repeat_interleave(n_heads // cache.n_kv, 0) for t in (k, v))
    score = q.double().view(m, n_heads, d).transpose(0, 1) @ k.transpose(1, 2) * d**-0.5
    position = torch.arange(start, start + m, device="cuda")[:, None]
    score.masked_fill_(torch.arange(start + m, device="cuda") > position, -torch.inf)
    return (score.softmax(-1) @ v).transpose(0, 1).reshape(m, -1)


@pytest.mark.parametrize(
    ("start", "m", "n_heads", "n_kv", "head_dim"),
    [(0, 1000, 32, 4, 128), (777, 300, 16, 16, 128), (5, 130, 8, 2, 80), (0, 257, 8, 1, 64), (64, 9, 6, 2, 96)],
)
def test_chunk_attention_is_close_to_float64_in_any_cut(start, m, n_heads, n_kv, head_dim):
    stored = start + m
    k, v = torch.full((2, 1, n_kv, stored + 100, head_dim), torch.nan, dtype=torch.float16, device="cuda")
    k[0, :, :stored] = normal(n_kv * stored, head_dim, seed=1).view(n_kv, stored, head_dim)
    v[0, :, :stored] = normal(n_kv * stored, head_dim, seed=2).view(n_kv, stored, head_dim)
    cache = KVCache(k, v)
    q = normal(m, n_heads * head_dim) * 2
    whole = attended(q, cache, start)
    expected = attention_reference(q, cache, start)
    assert relative_rms(whole, expected) < 1.5e-3
    assert (whole - expected).abs().max() < 1e-2 * expected.abs().max()
    cut = m // 3 + 1
    for at, n in ((0, cut), (cut, m - cut), (m - 1, 1)):
        later = KVCache(k.clone(), v.clone())
        later.k[:, :, start + at + n :] = torch.nan
        later.v[:, :, start + at + n :] = torch.nan
        assert torch.equal(attended(q[at : at + n].clone(), later, start + at), whole[at : at + n])


@pytest.mark.parametrize(
    ("start", "m", "n_heads", "n_kv", "head_dim"), [(0, 1000, 32, 4, 128), (5, 130, 8, 2, 96), (777, 300, 8, 1, 64)]
)
def test_chunk_attention_over_int8_is_close_to_float64_in_any_cut(start, m, n_heads, n_kv, head_dim):
    stored = start + m
    shape = (1, n_kv, stored + 100, head_dim)
    (k, k_scale), (v, v_scale) = (
        quantised_reference(normal(n_kv * shape[2], head_dim, seed=s).view(shape)) for s in (1, 2)
    )
    k_scale[:, :, stored:], v_scale[:, :, stored:] = torch.nan, torch.nan
    cache = KVCache(k, v, k_scale, v_scale)
    q = normal(m, n_heads * head_dim) * 2
    whole = attended(q, cache, start)
    expected = attention_reference(q, cache, start)
    assert relative_rms(whole, expected) < 1.5e-3
    assert (whole - expected).abs().max() < 1e-2 * expected.abs().max()
    cut = m // 3 + 1
    for at, n in ((0, cut), (cut, m - cut), (m - 1, 1)):
        later = KVCache(k, v, k_scale.clone(), v_scale.clone())
        later.k_scale[:, :, start + at + n :] = torch.nan
        later.v_scale[:, :, start + at + n :] = torch.nan
        assert torch.equal(attended(q[at : at + n].clone(), later, start + at), whole[at : at + n])
