"""Attention over the KV cache against float64: head sizes off the vector width, grouped heads, poison beyond a row's own past."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hotset.host.attention import FLOAT16, FLOAT32, Q8_0, attend_kernel, prepare_heads, quantise_heads
from hotset.model.rope import Rope, rope_tables

KIND = pytest.mark.parametrize("kind", [FLOAT32, FLOAT16, Q8_0], ids=["float32", "float16", "q8_0"])
N_CTX = 310


class Case:
    """Rows of queries over `n_seqs` sequences of keys and values, which are NaN beyond what each row may see."""

    def __init__(
        self, head: int, lengths: list[int], *, kind: int, n_heads: int = 4, n_kv: int = 2, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        m = len(lengths)
        self.head, self.n_heads, self.n_kv, self.kind = head, n_heads, n_kv, kind
        self.q = rng.standard_normal((m, n_heads * head), np.float32)
        self.keys, self.values = (rng.standard_normal((m, n_kv, N_CTX, head), np.float32) for _ in range(2))
        for s, n in enumerate(lengths):
            self.keys[s, :, n:], self.values[s, :, n:] = np.nan, np.nan
        self.positions, self.sequences = np.array(lengths) - 1, np.arange(m)
        self.first, self.softcap, self.sinks = np.zeros(m, np.int64), 0.0, np.empty(0, np.float32)

    def cells(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys or values as they are kept, and their scales."""
        if self.kind == Q8_0:
            return quantised(x)
        kept = x if self.kind == FLOAT32 else x.astype(np.float16)
        return kept, np.empty((*x.shape[:3], 0), np.float16)

    def run(self, rows: slice = slice(None)) -> np.ndarray:
        q = self.q[rows].copy()
        out = np.full(q.shape, np.nan, np.float32)
        kept = []
        for cells, scales in map(self.cells, (self.keys, self.values)):
            kept += [cells.view(np.uint16) if self.kind == FLOAT16 else cells, scales.view(np.uint16)]
        attend_kernel(self.kind, self.kind)(
            q, *kept, self.first[rows], self.positions[rows], self.sequences[rows], self.head**-0.5, self.softcap, self.sinks,
            self.head, self.head, self.n_heads, out,
        )  # fmt: skip
        return out

    def stored(self, x: np.ndarray) -> np.ndarray:
        """What is kept of keys or values, as float64."""
        cells, scales = self.cells(x)
        if self.kind == Q8_0:
            return cells.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, -1)
        return cells.astype(np.float64)

    def exact(self) -> np.ndarray:
        out = np.empty((len(self.q), self.n_heads, self.head))
        for row, (position, s) in enumerate(zip(self.positions, self.sequences, strict=True)):
            for i in range(self.n_heads):
                q = self.q[row].reshape(self.n_heads, -1)[i].astype(np.float64)
                keys, values = (
                    self.stored(t[s, i // (self.n_heads // self.n_kv), self.first[row] : position + 1])
                    for t in (self.keys, self.values)
                )
                scores = keys @ q / np.sqrt(self.head)
                if self.softcap:
                    scores = self.softcap * np.tanh(scores / self.softcap)
                sink = np.exp(self.sinks[i] - scores.max()) if self.sinks.size else 0
                weights = np.exp(scores - scores.max())
                out[row, i] = weights / (weights.sum() + sink) @ values
        return out.reshape(len(self.q), -1)


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """q8_0 in NumPy: int8 of the shape of x and float16 scales of 32 values each."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.rint(blocks * np.where(largest > 0, np.float32(127) / largest, np.float32(0)))
        q = np.nan_to_num(q).astype(np.int8)
    return q.reshape(x.shape), (largest[..., 0] / np.float32(127)).astype(np.float16)


@pytest.mark.parametrize(
    ("kind", "head"),
    [*product((FLOAT32, FLOAT16), (40, 64, 80, 128)), *product((Q8_0,), (32, 96, 128))],
)
def test_attention_is_that_of_float64_and_sees_nothing_beyond_its_row(kind, head):
    case = Case(head, [1, 2, 17, 300], kind=kind)
    assert np.abs(case.run() - case.exact()).max() < 2e-6


@KIND
def test_a_row_may_see_a_window_only_and_a_softcap_and_sinks_count(kind):
    case = Case(64 if kind == Q8_0 else 40, [1, 2, 17, 300], kind=kind)
    case.first = np.array([0, 1, 10, 64])
    case.sinks = np.array([-2, 0.5, 3, 40], np.float32)
    case.softcap = 2.0
    for s, first in enumerate(case.first):
        case.keys[s, :, :first], case.values[s, :, :first] = np.nan, np.nan
    assert np.abs(case.run() - case.exact()).max() < 2e-6


@KIND
@pytest.mark.parametrize(("n_heads", "n_kv"), [(1, 1), (6, 2), (8, 1), (5, 5)])
def test_heads_share_keys_in_groups(kind, n_heads, n_kv):
    case = Case(32, [3, 33], kind=kind, n_heads=n_heads, n_kv=n_kv)
    assert np.abs(case.run() - case.exact()).max() < 2e-6


@KIND
def test_a_row_gives_the_same_bits_alone_and_among_others(kind):
    case = Case(64 if kind == Q8_0 else 40, [5, 300, 1, 64, 65, 2, 9, 31], kind=kind)
    together = case.run()
    alone = np.concatenate([case.run(slice(i, i + 1)) for i in range(8)])
    assert np.array_equal(together.view(np.uint32), alone.view(np.uint32))


@KIND
def test_large_scores_neither_overflow_nor_lose_the_largest(kind):
    case = Case(32, [4, 4], kind=kind)
    case.keys[:, :, 2] = 100
    case.q[:] = 100
    assert np.allclose(case.run(), case.exact(), rtol=1e-6)


@KIND
@pytest.mark.parametrize("which", ["keys", "values"])
def test_poison_inside_a_rows_past_shows(kind, which):
    case = Case(32, [20, 20], kind=kind)
    getattr(case, which)[1, :, 7] = np.nan
    out = case.run()
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()


def test_heads_are_quantised_to_their_cells_and_nowhere_else():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 2 * 96 + 7), np.float32) * np.float32(5)
    x[0, :32], x[1, 40], x[2, 130] = 0, np.inf, np.nan
    cells = np.full((2, 2, 9, 96), 77, np.int8)
    scales = quantise_heads(x, np.array([8, 0, 3]), np.array([1, 0, 1]), cells)
    for r, (s, p) in enumerate(((1, 8), (0, 0), (1, 3))):
        q, d = quantised(x[r, : 2 * 96].reshape(2, 96))
        sound = np.isfinite(d)
        assert np.array_equal(scales[r].astype(np.float16)[sound], d[sound])
        assert not np.isfinite(scales[r][~sound]).any()
        assert np.array_equal(cells[s, :, p].reshape(2, 3, 32)[sound], q.reshape(2, 3, 32)[sound])
    assert (cells == 77).sum() >= (18 - 3 - 3) * 2 * 96


@pytest.mark.parametrize("m", [1, 5, 16])
@pytest.mark.parametrize("n_rotated", [64, 16])
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("norm", ["none", "head", "whole", "last"])
@pytest.mark.parametrize("start", [0, 24])
def test_heads_are_normed_and_turned_by_their_positions(m, n_rotated, pairs, norm, start):
    head, n, eps = 64 + start, 3, 1e-6
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((m, n * head + 16), np.float32)
    weight = rng.normal(1, 0.2, {"none": 0, "whole": n * head}.get(norm, head)).astype(np.float32)
    positions = rng.permutation(200)[:m]
    rope = Rope(theta=1e4, n_rotated=n_rotated, factor=2.0, pairs=pairs)
    expected = prepared(rows[:, : n * head], weight, positions, rope, n, eps, start, last=norm == "last")
    padding = rows[:, n * head :].copy()
    prepare_heads(
        rows, weight, eps, positions, rope_tables(rope, 200), n, head, start=start, neighbours=pairs == "neighbours", norm_last=norm == "last"
    )  # fmt: skip
    assert np.abs(rows[:, : n * head] - expected).max() < 3e-6
    assert np.array_equal(rows[:, n * head :], padding)


def prepared(x, weight, positions, rope, n, eps, start, *, last):
    def normed(x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight if weight.size else x

    heads = x.astype(np.float64).reshape(
        len(x), -1 if weight.size > x.shape[1] // n else n, max(x.shape[1] // n, weight.size)
    )
    heads = (heads if last else normed(heads)).reshape(len(x), n, -1)
    half = rope.n_rotated // 2
    angles = (positions[:, None] / rope.factor * rope.theta ** (-np.arange(half) / half))[:, None]
    inside = heads[..., start : start + 2 * half]
    a, b = (inside[..., :half], inside[..., half:]) if rope.pairs == "halves" else (inside[..., ::2], inside[..., 1::2])
    turned = (a + 1j * b) * np.exp(1j * angles)
    parts = np.concatenate([turned.real, turned.imag], -1)
    if rope.pairs == "neighbours":
        parts = np.stack([turned.real, turned.imag], -1).reshape(parts.shape)
    heads[..., start : start + 2 * half] = parts
    return (normed(heads) if last else heads).reshape(len(x), -1)
