"""Attention over the KV cache against float64: head sizes off the vector width, grouped heads, poison beyond a row's own past."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.host.attention import attend_kernel, prepare_heads
from hotset.model.rope import Rope, rope_tables

HALF = pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
N_CTX = 310


class Case:
    """Rows of queries over `n_seqs` sequences of keys and values, which are NaN beyond what each row may see."""

    def __init__(
        self, head: int, lengths: list[int], *, half: bool, n_heads: int = 4, n_kv: int = 2, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        m = len(lengths)
        self.head, self.n_heads, self.n_kv, self.half = head, n_heads, n_kv, half
        self.q = rng.standard_normal((m, n_heads * head), np.float32)
        kind = np.float16 if half else np.float32
        self.keys, self.values = (rng.standard_normal((m, n_kv, N_CTX, head)).astype(kind) for _ in range(2))
        for s, n in enumerate(lengths):
            self.keys[s, :, n:], self.values[s, :, n:] = np.nan, np.nan
        self.positions, self.sequences = np.array(lengths) - 1, np.arange(m)
        self.first, self.softcap, self.sinks = np.zeros(m, np.int64), 0.0, np.empty(0, np.float32)

    def run(self, rows: slice = slice(None)) -> np.ndarray:
        bits = np.uint16 if self.half else np.float32
        q = self.q[rows].copy()
        out = np.full(q.shape, np.nan, np.float32)
        attend_kernel(int(self.half))(
            q, self.keys.view(bits), self.values.view(bits), self.first[rows], self.positions[rows], self.sequences[rows], self.head**-0.5,
            self.softcap, self.sinks, self.head, self.head, self.n_heads, out,
        )  # fmt: skip
        return out

    def exact(self) -> np.ndarray:
        out = np.empty((len(self.q), self.n_heads, self.head))
        for row, (position, s) in enumerate(zip(self.positions, self.sequences, strict=True)):
            for i in range(self.n_heads):
                q = self.q[row].reshape(self.n_heads, -1)[i].astype(np.float64)
                keys, values = (
                    t[s, i // (self.n_heads // self.n_kv), self.first[row] : position + 1].astype(np.float64)
                    for t in (self.keys, self.values)
                )
                scores = keys @ q / np.sqrt(self.head)
                if self.softcap:
                    scores = self.softcap * np.tanh(scores / self.softcap)
                sink = np.exp(self.sinks[i] - scores.max()) if self.sinks.size else 0
                weights = np.exp(scores - scores.max())
                out[row, i] = weights / (weights.sum() + sink) @ values
        return out.reshape(len(self.q), -1)


@HALF
@pytest.mark.parametrize("head", [40, 64, 80, 128])
def test_attention_is_that_of_float64_and_sees_nothing_beyond_its_row(half, head):
    case = Case(head, [1, 2, 17, 300], half=half)
    assert np.abs(case.run() - case.exact()).max() < 2e-6


@HALF
def test_a_row_may_see_a_window_only_and_a_softcap_and_sinks_count(half):
    case = Case(40, [1, 2, 17, 300], half=half)
    case.first = np.array([0, 1, 10, 64])
    case.sinks = np.array([-2, 0.5, 3, 40], np.float32)
    case.softcap = 2.0
    for s, first in enumerate(case.first):
        case.keys[s, :, :first], case.values[s, :, :first] = np.nan, np.nan
    assert np.abs(case.run() - case.exact()).max() < 2e-6


@HALF
@pytest.mark.parametrize(("n_heads", "n_kv"), [(1, 1), (6, 2), (8, 1), (5, 5)])
def test_heads_share_keys_in_groups(half, n_heads, n_kv):
    case = Case(32, [3, 33], half=half, n_heads=n_heads, n_kv=n_kv)
    assert np.abs(case.run() - case.exact()).max() < 2e-6


@HALF
def test_a_row_gives_the_same_bits_alone_and_among_others(half):
    case = Case(40, [5, 300, 1, 64, 65, 2, 9, 31], half=half)
    together = case.run()
    alone = np.concatenate([case.run(slice(i, i + 1)) for i in range(8)])
    assert np.array_equal(together.view(np.uint32), alone.view(np.uint32))


@HALF
def test_large_scores_neither_overflow_nor_lose_the_largest(half):
    case = Case(32, [4, 4], half=half)
    case.keys[:, :, 2] = 100
    case.q[:] = 100
    assert np.allclose(case.run(), case.exact(), rtol=1e-6)


@HALF
@pytest.mark.parametrize("which", ["keys", "values"])
def test_poison_inside_a_rows_past_shows(half, which):
    case = Case(32, [20, 20], half=half)
    getattr(case, which)[1, :, 7] = np.nan
    out = case.run()
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()


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
