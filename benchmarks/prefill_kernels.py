"""How fast are the kernels of a prompt's chunk? Products of many tokens are bound by tensor cores, of few by memory.

The shapes are those of one layer of Qwen3-30B-A3B with random picks, 8 of 128 experts. A figure is TFLOP/s and its share of what a plain
float16 product of 8,192 x 8,192 reaches (torch), or GB/s of weights where few tokens share an expert.

    python benchmarks/prefill_kernels.py                       # products, attention and the small kernels
    python benchmarks/prefill_kernels.py --sweep               # other tiles too: numbers for kernels/tuning.py
    python benchmarks/prefill_kernels.py --formats Q4_K --tokens 512 --only experts
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from hotset.kernels.chunk_attention import chunk_attention
from hotset.kernels.chunk_dense import dense
from hotset.kernels.chunk_plan import ChunkPlan
from hotset.kernels.grouped import GroupedBuffers, combine_rows, down_wave, gate_up_wave
from hotset.kernels.half import ChunkRows, halve, rms_norm_rows
from hotset.kernels.kv_cache import KVCache
from hotset.kernels.matvec import DeviceMatrix
from hotset.kernels.rope import DeviceRope, qk_norm_rope_store
from hotset.kernels.router import route
from hotset.kernels.rows import Rows
from hotset.kernels.tuning import ChunkTuning, chunk_tuning_for
from hotset.model.routing import RouterRule
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.random import random_weights

D_MODEL, D_FF, N_EXPERTS, N_PICKS = 2048, 768, 128, 8
N_HEADS, N_KV, D_HEAD = 32, 4, 128
CUDA = torch.device("cuda")
BY_NAME = {f.name: f for f in FORMATS.values()}
WARM_UPS, REPEATS = 2, 7
# What differs from the device's own tile.
EXPERT_SWEEP = (
    {"stages": 4},
    {"few": 16},
    {"depth": 128},
    {"rows": 64, "warps": 4, "programs": 2},
    {"rows": 64, "tokens": 64, "few": 16, "warps": 4, "programs": 2},
    {"rows": 64, "tokens": 256},
    {"rows": 64, "tokens": 64, "few": 16, "warps": 4, "stages": 4, "programs": 3},
)
DENSE_SWEEP = (
    {"stages": 4},
    {"depth": 128},
    {"tokens": 128},
    {"tokens": 128, "stages": 4},
    {"rows": 64, "tokens": 128, "warps": 4},
    {"rows": 64, "tokens": 256, "warps": 4},
    {"rows": 256, "tokens": 128},
)
ATTENTION_SWEEP = (
    {"stages": 2},
    {"keys": 128},
    {"keys": 128, "stages": 2},
    {"queries": 64, "warps": 4},
    {"queries": 64, "warps": 4, "stages": 2},
)


def microseconds(launch: Callable[[], None]) -> float:
    """Return the median time of a launch between events; queued behind a pause, so that the host's own time does not count."""
    for _ in range(WARM_UPS):
        launch()
    torch.cuda.synchronize()
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(REPEATS)]
    torch.cuda._sleep(3_000_000)  # noqa: SLF001 torch's own way to hold the stream
    for start, end in events:
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return float(np.median([start.elapsed_time(end) for start, end in events])) * 1e3


def random_planes(layout: MatrixLayout) -> torch.Tensor:
    """A few random rows, again and again."""
    some = random_weights(layout.fmt, min(64, layout.rows), layout.cols, 0.02)
    return torch.from_numpy(layout.from_blocks(np.resize(some, (layout.rows, layout.row_bytes)))).to(CUDA)


def chunk_rows(m: int, cols: int) -> ChunkRows:
    x = ChunkRows.empty(m, cols, CUDA)
    x.f32.normal_()
    halve(x)
    return x


class Experts:
    """A layer's experts of one format and the picks of a chunk."""

    def __init__(self, name: str) -> None:
        shapes = ((D_FF, D_MODEL), (D_FF, D_MODEL), (D_MODEL, D_FF))
        self.layout = SpanLayout(("gate", "up", "down"), tuple(MatrixLayout(BY_NAME[name], *shape) for shape in shapes))
        span = torch.zeros(self.layout.n_bytes, dtype=torch.uint8, device=CUDA)
        for start, matrix in zip(self.layout.starts, self.layout.matrices, strict=True):
            span[start : start + matrix.n_bytes] = random_planes(matrix)
        self.pool = span.repeat(N_EXPERTS)
        self.address = self.pool.data_ptr() + torch.arange(N_EXPERTS, device=CUDA) * self.layout.n_bytes

    def prepare(self, m: int, tuning: ChunkTuning) -> None:
        rng = np.random.default_rng(0)
        picks = np.stack([rng.permutation(N_EXPERTS)[:N_PICKS] for _ in range(m)]).astype(np.int32)
        self.picks = torch.from_numpy(picks).to(CUDA)
        self.n_used = len(np.unique(picks))
        self.order = torch.arange(N_EXPERTS, dtype=torch.int32, device=CUDA)
        self.ranks = torch.tensor([0, N_EXPERTS], dtype=torch.int32, device=CUDA)
        self.plan = ChunkPlan.empty(m, N_PICKS, N_EXPERTS, 1, tuning.expert_tokens, CUDA)
        self.buffers = GroupedBuffers.empty(self.layout, m * N_PICKS, CUDA, tuning)
        self.tuning = tuning
        self.make_plan()

    def make_plan(self) -> None:
        self.plan.make(self.picks, self.order, self.ranks)

    def gate_up(self, x: ChunkRows) -> None:
        gate_up_wave(x, self.address, self.plan, 0, self.layout, self.buffers, self.tuning)

    def down(self) -> None:
        down_wave(self.address, self.plan, 0, self.layout, self.buffers, self.tuning)


class Bench:
    """Runs and prints; results are kept for the last line."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.tokens = [int(t) for t in args.tokens.split(",")]
        self.formats = args.formats.split(",")
        self.sweep = args.sweep
        self.deadline = time.monotonic() + args.seconds
        self.tuning = chunk_tuning_for(CUDA)
        self.results: list[dict[str, object]] = []
        a, b = (torch.randn(8192, 8192, device=CUDA, dtype=torch.float16) for _ in range(2))
        self.ceiling = 2 * 8192**3 / microseconds(lambda: torch.mm(a, b)) / 1e6
        print(f"{torch.cuda.get_device_name()}: a float16 product of 8,192 x 8,192 reaches {self.ceiling:.0f} TFLOP/s")

    def report(self, name: str, m: int, launch: Callable[[], None], *, flop: float = 0, n_bytes: float = 0) -> None:
        try:
            us = microseconds(launch)
        except Exception as error:  # noqa: BLE001 a tile too large for the device must not end the sweep
            print(f"{name:44} {m:5}: {error!r:.100}")
            return
        row: dict[str, object] = {"name": name, "tokens": m, "us": us}
        text = f"{name:44} {m:5} tokens {us:9.1f} us"
        if flop:
            row["tflops"] = flop / us / 1e6
            text += f" {flop / us / 1e6:6.0f} TFLOP/s {100 * flop / us / 1e6 / self.ceiling:3.0f} %"
        if n_bytes:
            row["gb_per_s"] = n_bytes / us / 1e3
            text += f" {n_bytes / us / 1e3:6.0f} GB/s"
        print(text, flush=True)
        self.results.append(row)

    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline

    def expert_products(self, experts: Experts, name: str, m: int, tuning: ChunkTuning, note: str = "") -> None:
        experts.prepare(m, tuning)
        x = chunk_rows(m, D_MODEL)
        gate, down = (experts.layout.matrix(role).n_bytes * experts.n_used for role in ("gate", "down"))
        flop = 2 * m * N_PICKS * D_MODEL * D_FF
        self.report(f"gate_up {name}{note}", m, lambda: experts.gate_up(x), flop=2 * flop, n_bytes=2 * gate)
        self.report(f"down {name}{note}", m, experts.down, flop=flop, n_bytes=down)

    def experts(self) -> None:
        for name in self.formats:
            experts = Experts(name)
            for m in self.tokens:
                self.expert_products(experts, name, m, self.tuning)
            if not self.sweep or name == "Q8_0":
                continue
            for change in EXPERT_SWEEP:
                if self.out_of_time():
                    return
                changed = {role: replace(getattr(self.tuning, role), **change) for role in ("gate_up", "down")}
                self.expert_products(experts, name, max(self.tokens), replace(self.tuning, **changed), f" {change}")

    def dense_product(self, name: str, rows: int, cols: int, m: int, tuning: ChunkTuning, note: str = "") -> None:
        layout = MatrixLayout(BY_NAME[name], rows, cols)
        weight = DeviceMatrix(layout, random_planes(layout))
        x, out = chunk_rows(m, cols), torch.empty(m, layout.padded_rows, device=CUDA)
        launch = lambda: dense(x, weight, out, tuning=tuning)  # noqa: E731
        self.report(f"dense {name} {rows} x {cols}{note}", m, launch, flop=2 * m * rows * cols)

    def dense(self) -> None:
        for m in self.tokens:
            self.dense_product("Q4_K", N_HEADS * D_HEAD, D_MODEL, m, self.tuning)
            self.dense_product("Q6_K", N_KV * D_HEAD, D_MODEL, m, self.tuning)
            self.dense_product("Q4_K", D_MODEL, N_HEADS * D_HEAD, m, self.tuning)
            self.dense_product("F32", N_EXPERTS, D_MODEL, m, self.tuning)
        for change in DENSE_SWEEP if self.sweep else ():
            if self.out_of_time():
                return
            tile = replace(self.tuning.dense, **change)
            tuning = replace(self.tuning, dense=tile, narrow=tile)
            self.dense_product("Q4_K", N_HEADS * D_HEAD, D_MODEL, max(self.tokens), tuning, f" {change}")

    def attention(self) -> None:
        for m in (512, 2048, 4096):
            self.attend(m, self.tuning)
        for change in ATTENTION_SWEEP if self.sweep else ():
            if self.out_of_time():
                return
            tuning = replace(self.tuning, attention=replace(self.tuning.attention, **change))
            self.attend(4096, tuning, f" {change}")

    def attend(self, m: int, tuning: ChunkTuning, note: str = "") -> None:
        q, cache, rows = self.rows_of_a_chunk(m)
        out = torch.empty_like(q)
        launch = lambda: chunk_attention(q, cache, rows, D_HEAD**-0.5, out, tuning)  # noqa: E731
        self.report(f"attention{note}", m, launch, flop=2 * N_HEADS * D_HEAD * m * m)

    @staticmethod
    def rows_of_a_chunk(m: int) -> tuple[torch.Tensor, KVCache, Rows]:
        k, v = torch.randn(2, 1, N_KV, m, D_HEAD, device=CUDA).half()
        positions = torch.arange(m, dtype=torch.int32, device=CUDA)
        zeros = torch.zeros_like(positions)
        return (
            torch.randn(m, N_HEADS * D_HEAD, device=CUDA),
            KVCache(k, v),
            Rows(positions, positions, zeros, zeros + 1),
        )

    def small(self) -> None:
        """What stands between the products; bytes are those that must be read and written."""
        m = max(self.tokens)
        x, weight = torch.randn(m, D_MODEL, device=CUDA), torch.ones(D_MODEL, device=CUDA)
        normed = ChunkRows.empty(m, D_MODEL, CUDA)
        self.report("norm and halves", m, lambda: rms_norm_rows(x, weight, normed, 1e-6), n_bytes=m * D_MODEL * 10)
        attended = chunk_rows(m, N_HEADS * D_HEAD)
        self.report("halves", m, lambda: halve(attended), n_bytes=m * N_HEADS * D_HEAD * 6)
        q, cache, rows = self.rows_of_a_chunk(m)
        k, v = torch.randn(2, m, N_KV * D_HEAD, device=CUDA)
        tables = torch.ones(2, m, D_HEAD // 2, device=CUDA)
        norm = torch.ones(D_HEAD, device=CUDA)
        rope = DeviceRope(tables[0], tables[1], q_norm=norm, k_norm=norm)
        n_bytes = m * D_HEAD * (8 * N_HEADS + 12 * N_KV)
        self.report("rope and store", m, lambda: qk_norm_rope_store(q, k, v, rope, cache, rows), n_bytes=n_bytes)
        rule = RouterRule(n_experts=N_EXPERTS, n_picks=N_PICKS)
        logits = torch.randn(m, N_EXPERTS, device=CUDA)
        picks = torch.empty(m, N_PICKS, dtype=torch.int32, device=CUDA)
        weights = torch.empty(m, N_PICKS, device=CUDA)
        self.report("router", m, lambda: route(logits, rule, None, picks, weights), n_bytes=logits.numel() * 4)
        experts = Experts(self.formats[0])
        experts.prepare(m, self.tuning)
        self.report("plan", m, experts.make_plan)
        experts.buffers.z.normal_()
        if experts.buffers.z_scale is not None:
            experts.buffers.z_scale.fill_(1)
        n_bytes = experts.buffers.z.numel() * 2 + x.numel() * 8
        self.report("combine", m, lambda: combine_rows(experts.buffers, weights, x), n_bytes=n_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="Q4_K,Q6_K,Q8_0", help="formats of the experts")
    parser.add_argument("--tokens", default="32,128,512,2048,4096", help="sizes of the chunk")
    parser.add_argument("--only", default="experts,dense,attention,small", help="which kernels")
    parser.add_argument("--sweep", action="store_true", help="other tiles too")
    parser.add_argument("--seconds", type=float, default=100, help="no new tile after so long")
    args = parser.parse_args()
    bench = Bench(args)
    for part in args.only.split(","):
        getattr(bench, part)()
    print(json.dumps({"ceiling_tflops": bench.ceiling, "results": bench.results}))


if __name__ == "__main__":
    main()
