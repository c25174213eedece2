"""Attention over the KV cache against float64: head sizes off the vector width, grouped heads, poison beyond a row's own past."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.host.attention import attend_kernel, rotate
from hotset.model.config import Rope
from hotset.model.rope import rope_tables

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

    def run(self, rows: slice = slice(None)) -> np.ndarray:
        bits = np.uint16 if self.half else np.float32
        q = self.q[rows].copy()
        out = np.full(q.shape, np.nan, np.float32)
        attend_kernel(int(self.half))(
            q, self.keys.view(bits), self.values.view(bits), self.positions[rows], self.sequences[rows], self.head**-0.5, self.head, self.n_heads, out
        )  # fmt: skip
        return out

    def exact(self) -> np.ndarray:
        out = np.empty((len(self.q), self.n_heads, self.head))
        for row, (position, s) in enumerate(zip(self.positions, self.sequences, strict=True)):
            for i in range(self.n_heads):
                q = self.q[row].reshape(self.n_heads, -1)[i].astype(np.float64)
                keys, values = (
                    t[s, i // (self.n_heads // self.n_kv), : position + 1].astype(np.float64)
                    for t in (self.keys, self.values)
                )
                scores = keys @ q / np.sqrt(self.head)
                weights = np.exp(scores - scores.max())
                out[row, i] = weights / weights.sum() @ values
        return out.reshape(len(self.q), -1)


@HALF
@pytest.mark.parametrize("head", [40, 64, 80, 128])
def test_attention_is_that_of_float64_and_sees_nothing_beyond_its_row(half, head):
    case = Case(head, [1, 2, 17, 300], half=half)
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
@pytest.mark.parametrize("with_norm", [True, False])
def test_heads_are_normed_and_turned_by_their_positions(m, n_rotated, with_norm):
    head, n_heads, n_kv, eps = 64, 3, 1, 1e-6
    rng = np.random.default_rng(8)
    q, k = rng.standard_normal((m, n_heads * head), np.float32), rng.standard_normal((m, n_kv * head + 16), np.float32)
    weights = [rng.normal(1, 0.2, head if with_norm else 0).astype(np.float32) for _ in range(2)]
    positions = rng.permutation(200)[:m]
    rope = Rope(theta=1e4, n_rotated=n_rotated, factor=2.0)
    expected = [
        turned(x, w, positions, rope, n, head, eps) for x, w, n in zip((q, k), weights, (n_heads, n_kv), strict=True)
    ]
    padding = k[:, n_kv * head :].copy()
    rotate(q, k, *weights, eps, positions, *rope_tables(rope, 200), n_heads=n_heads, n_kv=n_kv, head=head)
    assert np.abs(q - expected[0]).max() < 2e-6
    assert np.abs(k[:, : n_kv * head] - expected[1]).max() < 2e-6
    assert np.array_equal(k[:, n_kv * head :], padding)


def turned(x, weight, positions, rope, n, head, eps):
    x = x[:, : n * head].reshape(-1, n, head).astype(np.float64)
    if weight.size:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    half = rope.n_rotated // 2
    angles = (positions[:, None] / rope.factor * rope.theta ** (-np.arange(half) / half))[:, None]
    pairs = x[..., :half] + 1j * x[..., half : 2 * half]
    pairs = pairs * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag, x[..., 2 * half :]], -1).reshape(len(x), -1)
