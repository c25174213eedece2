"""One thread, one token, one layer's experts: hotset's host kernels against ggml's in the same run.

    python benchmarks/host_expert.py

Eight picks of Qwen3-30B-A3B's shape (d_model 2,048, d_ff 768). Both sides get the same weights, input, picks and pick weights, quantise
the input themselves, and must agree. "same" picks the same eight experts every time, so that what fits stays in the CPU's caches;
"rotating" picks others every time, so that weights come from memory. The two sides take turns; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import ggml
import numba
import numpy as np
from make_model import blocks
from numpy.typing import NDArray

from hotset.experts.bank import ExpertBank
from hotset.experts.host_cache import HostCache
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape
from hotset.gguf import TYPES_BY_NAME
from hotset.host.activation import quantized
from hotset.host.cpu import levels
from hotset.model.batch import prompt_batch
from hotset.model.config import ModelConfig
from hotset.model.host_kv import HostKV
from hotset.model.host_ops import HostOps
from hotset.model.kv import DEFAULT
from hotset.model.routing import RouterRule
from hotset.model.rules import Branch, Experts, LayerRule, Norm
from hotset.model.weights import ExpertWeights
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout

D_MODEL, D_EXPERT, K = 2048, 768, 8
FORMATS_MEASURED = ("Q4_K", "Q6_K", "Q8_0")
ROLES = ("gate", "up", "down")
# ggml rounds the activations of K formats to int8 in blocks of 256, hotset in blocks of 32: both are about 1 % from exact.
MAX_RMS = 0.03


class HostStep:
    """The same step as ggml.ExpertStep through HostOps, as the engine takes it."""

    def __init__(self, ggml_type: int, data: dict[str, NDArray[np.uint8]], n_experts: int) -> None:
        fmt = FORMATS[ggml_type]
        shapes = {"gate": (D_EXPERT, D_MODEL), "up": (D_EXPERT, D_MODEL), "down": (D_MODEL, D_EXPERT)}
        span = SpanLayout(ROLES, tuple(MatrixLayout(fmt, *shapes[role]) for role in ROLES))
        self._bank = ExpertBank((span,), n_experts)
        for role in ROLES:
            self._bank.fill(0, role, data[role])
        config = model_config(n_experts)
        shape = CacheShape((span.n_bytes,), (n_experts,), (n_experts // 4,), K, 8)
        cache = HostCache(shape, Policy.parse("lrfu:16"))
        self._ops = HostOps(config, self._bank, cache, HostKV(config, 1, 1, DEFAULT), fast=True)
        rule = config.experts
        assert rule
        self._experts = ExpertWeights(rule, 0, span, router=None)
        self._batch = prompt_batch([0], 0, wanted=[0])
        self.span_bytes = span.n_bytes
        self.x = np.zeros((1, D_MODEL), np.float32)
        self.picks = np.zeros((1, K), np.int32)
        self.weights = np.zeros((1, K), np.float32)
        self.out = np.zeros((1, D_MODEL), np.float32)

    def run(self) -> None:
        activation = quantized(self.x, integers=True)
        residual = np.zeros((1, D_MODEL), np.float32)
        self.out = self._ops.add_experts(residual, activation, (self.picks, self.weights), self._experts, self._batch)


def model_config(n_experts: int) -> ModelConfig:
    layer = LayerRule(None, (Branch((Experts(RouterRule(n_experts, K), D_EXPERT),)),))
    return ModelConfig("qwen3moe", "one layer", D_MODEL, n_vocab=1, n_ctx_train=1, norm=Norm(1e-6), layers=(layer,))


def random_experts(name: str, n_experts: int, rng: np.random.Generator) -> dict[str, NDArray[np.uint8]]:
    size = TYPES_BY_NAME[name].row_bytes(D_MODEL * D_EXPERT) * n_experts
    return {role: np.resize(blocks(name, size, 0.02, rng), size).reshape(-1) for role in ROLES}


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def compare(name: str, n_experts: int, repeats: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    data = random_experts(name, n_experts, rng)
    ggml_type = TYPES_BY_NAME[name].id
    theirs = ggml.ExpertStep(ggml_type, data, D_MODEL, D_EXPERT, n_experts, K)
    ours = HostStep(ggml_type, data, n_experts)

    def give(picks: NDArray[np.int32]) -> None:
        ours.picks[0] = theirs.picks[:] = picks

    ours.x[0] = theirs.x[:] = rng.standard_normal(D_MODEL, np.float32)
    shares = rng.random(K, np.float32)
    ours.weights[0] = theirs.weights[:] = shares / shares.sum()
    give(np.arange(K, dtype=np.int32))
    error = disagreement(ours, theirs)
    if error > MAX_RMS:
        raise SystemExit(f"{name}: the two sides differ by {100 * error:.1f} % (RMS), so nothing was measured")
    rows = []
    for order in ("same", "rotating"):
        times: tuple[list[float], list[float]] = ([], [])
        for i in range(repeats):
            first = i * K % n_experts if order == "rotating" else 0
            give((first + np.arange(K, dtype=np.int32)) % n_experts)
            for side, own in zip((ours, theirs), times, strict=True):
                own.append(seconds(side.run))
        mine, other = (statistics.median(t) for t in times)
        read = K * ours.span_bytes / 1e9
        rows.append(
            {
                "format": name,
                "picks": order,
                "hotset_ms": 1e3 * mine,
                "ggml_ms": 1e3 * other,
                "hotset_gb_s": read / mine,
                "ggml_gb_s": read / other,
                "ratio": other / mine,
                "disagreement": error,
            }
        )
    return rows


def disagreement(ours: HostStep, theirs: ggml.ExpertStep) -> float:
    """Relative RMS difference of the two results."""
    ours.run()
    theirs.run()
    a, b = ours.out[0, :D_MODEL].astype(np.float64), theirs.out.astype(np.float64)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


def main() -> None:
    parser = argparse.ArgumentParser(description="The expert step on one thread, against ggml.")
    parser.add_argument("--experts", type=int, default=64, help="64 of Q4_K take 170 MB on either side")
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    numba.set_num_threads(1)
    bar = 1.0 if "vnni" in levels()[0] else 0.7
    print(f"hotset: {levels()[0]}; ggml: {ggml.features()}; bar {bar}")
    print("| format | picks | hotset ms | ggml ms | hotset GB/s | ggml GB/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for name in FORMATS_MEASURED:
        for row in compare(name, options.experts, options.repeats):
            rows.append({**row, "holds": row["ratio"] >= bar})
            cells = (f"{row[key]:.2f}" for key in ("hotset_ms", "ggml_ms", "hotset_gb_s", "ggml_gb_s", "ratio"))
            print(f"| {name} | {row['picks']} | {' | '.join(cells)} |", flush=True)
    print(json.dumps({"level": levels()[0], "ggml": ggml.features(), "bar": bar, "rows": rows}))


if __name__ == "__main__":
    main()
