"""Qwen3-MoE as the paper has it: plain PyTorch over dequantised weights, in one float type, one sequence at a time."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from hotset.gguf import open_gguf

# A gap this small between the last pick and the first expert left out is rounding: another order of sums may pick the other.
SMALLEST_GAP = 1e-5


@dataclass(frozen=True)
class Reference:
    """Logits float [n, vocab]; picks int [layers, n, k], sorted; gaps [layers, n] between the scores of the last pick and the next expert."""

    logits: np.ndarray
    picks: np.ndarray
    gaps: np.ndarray

    def n_agreed(self, picks: np.ndarray) -> int:
        """How many positions come before the first with other picks than [layers, n, k]; a wrong pick there reaches all that follow.

        AssertionError where those picks do not hang on rounding.
        """
        differ = (np.sort(picks, -1) != self.picks).any(-1)
        at = np.flatnonzero(differ.any(0))
        if not at.size:
            return differ.shape[1]
        layer = int(differ[:, at[0]].argmax())
        gap = self.gaps[layer, at[0]]
        assert gap < SMALLEST_GAP, f"position {at[0]} of layer {layer} has other picks; the score gap is {gap:.1e}"
        return int(at[0])


class Qwen3MoE:
    """The model of a GGUF file, weights dequantised by the gguf package."""

    def __init__(self, path, dtype: torch.dtype = torch.float32) -> None:
        file = open_gguf(path)
        self.dtype = dtype
        self.weights = {name: self._tensor(file, info) for name, info in file.tensors.items()}
        arch = file.metadata.arch
        self.n_layers = arch.int("block_count")
        self.n_heads = arch.int("attention.head_count")
        self.n_kv = arch.int("attention.head_count_kv")
        self.d_head = arch.int("attention.key_length")
        self.n_picks = arch.int("expert_used_count")
        self.eps = arch.float("attention.layer_norm_rms_epsilon")
        self.theta = arch.float("rope.freq_base", 10000.0)
        self.n_rotated = arch.int("rope.dimension_count", self.d_head)
        self.rope_factor = arch.float("rope.scaling.factor", 1.0)

    def _tensor(self, file, info) -> Tensor:
        kind = gguf.GGMLQuantizationType(info.ggml_type.id)
        rows = file.data(info.name).reshape(-1, info.ggml_type.row_bytes(info.shape[-1]))
        return torch.from_numpy(gguf.dequantize(rows, kind).reshape(info.shape).astype(np.float64)).to(self.dtype)

    @torch.no_grad()
    def __call__(self, tokens) -> Reference:
        x = self.weights["token_embd.weight"][torch.as_tensor(tokens, dtype=torch.int64)]
        picks, gaps = [], []
        for i in range(self.n_layers):
            x = x + self.attention(i, self.norm(x, f"blk.{i}.attn_norm"))
            y, picked, gap = self.experts(i, self.norm(x, f"blk.{i}.ffn_norm"))
            x = x + y
            picks.append(picked)
            gaps.append(gap)
        output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        logits = self.norm(x, "output_norm") @ output.T
        return Reference(logits.numpy(), torch.stack(picks).sort(-1).values.numpy(), torch.stack(gaps).numpy())

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weights[f"{name}.weight"]

    def attention(self, i: int, x: Tensor) -> Tensor:
        n = len(x)
        heads = {
            name: (x @ self.weights[f"blk.{i}.attn_{name}.weight"].T).view(n, count, self.d_head).transpose(0, 1)
            for name, count in (("q", self.n_heads), ("k", self.n_kv), ("v", self.n_kv))
        }
        q, k = (self.rotate(self.norm(heads[name], f"blk.{i}.attn_{name}_norm")) for name in ("q", "k"))
        k, v = (t.repeat_interleave(self.n_heads // self.n_kv, 0) for t in (k, heads["v"]))
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2) / self.d_head**0.5).masked_fill(future, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
        return mixed @ self.weights[f"blk.{i}.attn_output.weight"].T

    def rotate(self, x: Tensor) -> Tensor:
        """Pairs (j, j + n_rotated / 2) of [heads, n, d_head] turn by position theta^(-2 j / n_rotated)."""
        half = self.n_rotated // 2
        frequencies = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] / self.rope_factor * frequencies
        cos, sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        a, b, rest = x.split([half, half, self.d_head - 2 * half], -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def experts(self, i: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = (x @ self.weights[f"blk.{i}.ffn_gate_inp.weight"].T).softmax(-1)
        best = scores.sort(stable=True, dim=-1, descending=True)
        picks, weights = best.indices[:, : self.n_picks], best.values[:, : self.n_picks]
        weights = weights / weights.sum(-1, keepdim=True)
        gate, up, down = (self.weights[f"blk.{i}.ffn_{role}_exps.weight"] for role in ("gate", "up", "down"))
        y = torch.zeros_like(x)
        for e in picks.unique().tolist():
            row, rank = torch.nonzero(picks == e, as_tuple=True)
            hidden = silu(x[row] @ gate[e].T) * (x[row] @ up[e].T)
            y.index_add_(0, row, weights[row, rank, None] * (hidden @ down[e].T))
        everyone = best.values.shape[1] == self.n_picks
        gap = (
            torch.full((len(x),), torch.inf)
            if everyone
            else best.values[:, self.n_picks - 1] - best.values[:, self.n_picks]
        )
        return y, picks, gap


def relative_rms(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected|, both as float64."""
    expected = np.asarray(expected, np.float64)
    return float(np.linalg.norm(np.asarray(found, np.float64) - expected) / np.linalg.norm(expected))
