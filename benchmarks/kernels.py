"""How fast are the matrix kernels of a decode step? They are bound by memory: the ceiling is the bandwidth of the GPU.

Each kernel runs in a CUDA graph of 48 launches (the layers of Qwen3-30B-A3B) whose experts or matrices rotate over a pool that no cache
holds. For every format and tile it prints microseconds, GB/s of weights and the share of the bandwidth that a large read reaches.

    python benchmarks/kernels.py                                   # the expert kernels, the head and a dense matrix
    python benchmarks/kernels.py --formats Q4_K,Q6_K --picks 4 --rows 2
    python benchmarks/kernels.py --only gate_up --mode reference
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from hotset.kernels.activation import Activation, quantise
from hotset.kernels.experts import ExpertBuffers, combine, down, expert_step, gate_up
from hotset.kernels.matvec import DeviceMatrix, matvec
from hotset.kernels.norm import rms_norm
from hotset.kernels.tuning import Tile, Tuning, tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.random import random_weights

D_MODEL, D_FF, N_VOCAB = 2048, 768, 151_936
LAUNCHES = 48
POOL_BYTES = 1 << 30
CUDA = torch.device("cuda")
BY_NAME = {f.name: f for f in FORMATS.values()}
SWEEP = {
    "gate_up": [Tile(r, w) for r in (32, 64) for w in (2, 4, 8, 16)],
    "down": [Tile(r, w) for r in (16, 32) for w in (1, 2, 4)],
    "matvec": [Tile(r, w) for r in (16, 32) for w in (1, 2, 4, 8)],
}


def random_planes(layout: MatrixLayout) -> torch.Tensor:
    """A few random rows, again and again."""
    some = random_weights(layout.fmt, min(64, layout.rows), layout.cols, 0.05)
    return torch.from_numpy(layout.from_blocks(np.resize(some, (layout.rows, layout.row_bytes)))).to(CUDA)


def microseconds(launches: list[Callable[[], None]]) -> float:
    """Return the time of one launch: median of 20 replays of all in one graph."""
    launches[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    times = []
    for _ in range(23):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(launches))
    return float(np.median(times[3:]))


def read_bandwidth() -> float:
    """GB/s that a plain sum over 4 GiB reads: the ceiling."""
    data = torch.zeros(1 << 30, dtype=torch.float32, device=CUDA)
    return data.numel() * 4 / microseconds([data.sum] * 2) / 1e3


def activation(m: int, cols: int, *, quantised: bool) -> Activation:
    x = Activation.empty(m, cols, CUDA, quantised=quantised)
    x.f32.normal_()
    quantise(x)
    return x


class Bench:
    """Runs and prints; results are kept for the last line."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.rows, self.picks = args.rows, args.picks
        self.fast = args.mode == "fast"
        self.tuning = tuning_for(CUDA)
        self.ceiling = read_bandwidth()
        self.results: list[dict[str, object]] = []
        name = torch.cuda.get_device_name()
        print(f"{name}: reads {self.ceiling:.0f} GB/s; {args.mode} mode, {self.rows} rows, {self.picks} picks")

    def report(
        self, kernel: str, fmt: str, tile: Tile | None, n_bytes: int, launches: list[Callable[[], None]]
    ) -> None:
        try:
            us = microseconds(launches)
        except Exception as error:  # noqa: BLE001 a tile too large for the device must not end the sweep
            print(f"{kernel:8} {fmt:7} {tile}: {error!r:.100}")
            return
        rate = n_bytes / us / 1e3
        shape = f"{tile.rows:3} rows {tile.warps:2} warps" if tile else " " * 17
        print(
            f"{kernel:8} {fmt:7} {shape} {us:8.2f} us {rate:6.0f} GB/s {100 * rate / self.ceiling:4.0f} %", flush=True
        )
        row = {"kernel": kernel, "format": fmt, "us": us, "gb_per_s": rate}
        self.results.append(row | ({"rows": tile.rows, "warps": tile.warps} if tile else {}))

    def tunings(self, kernel: str) -> Iterator[tuple[Tile, Tuning]]:
        field = kernel if self.fast or kernel != "matvec" else "matvec_float"
        for tile in SWEEP[kernel]:
            yield tile, replace(self.tuning, **{field: tile})

    def experts(self, name: str, only: set[str]) -> None:
        """gate+up, down and the whole step, with the same format for all three matrices."""
        fmt = BY_NAME[name]
        shapes = ((D_FF, D_MODEL), (D_FF, D_MODEL), (D_MODEL, D_FF))
        layout = SpanLayout(("gate", "up", "down"), tuple(MatrixLayout(fmt, *shape) for shape in shapes))
        span = torch.zeros(layout.n_bytes, dtype=torch.uint8, device=CUDA)
        for start, matrix in zip(layout.starts, layout.matrices, strict=True):
            span[start : start + matrix.n_bytes] = random_planes(matrix)
        n_spans = POOL_BYTES // layout.n_bytes
        pool = span.repeat(n_spans)
        n = self.rows * self.picks
        rng = np.random.default_rng(0)
        chosen = [
            np.concatenate([rng.permutation(n_spans)[: self.picks] for _ in range(self.rows)]) for _ in range(LAUNCHES)
        ]
        address = [torch.from_numpy(pool.data_ptr() + c * layout.n_bytes).to(CUDA) for c in chosen]
        x = activation(self.rows, D_MODEL, quantised=self.fast)
        buffers = ExpertBuffers.empty(layout, n, CUDA, quantised=self.fast)
        buffers.hidden.f32.normal_()
        quantise(buffers.hidden)
        out = torch.zeros(self.rows, D_MODEL, device=CUDA)
        weights = torch.full((n,), 1 / n, device=CUDA)
        down_bytes = n * layout.matrix("down").n_bytes
        if "gate_up" in only:
            for tile, t in self.tunings("gate_up"):
                launches = [lambda a=a, t=t: gate_up(x, a, layout, buffers.hidden, t) for a in address]
                self.report("gate_up", name, tile, n * 2 * layout.matrix("gate").n_bytes, launches)
        if "down" in only:
            for tile, t in self.tunings("down"):
                launches = [lambda a=a, t=t: down(buffers.hidden, a, layout, buffers.z, t) for a in address]
                self.report("down", name, tile, down_bytes, launches)
        if "step" in only:
            launches = [lambda a=a: combine(buffers.z, weights, a, out) for a in address]
            self.report("combine", name, None, buffers.z.numel() * 4, launches)
            launches = [lambda a=a: expert_step(x, a, weights, layout, buffers, out) for a in address]
            self.report("step", name, None, n * layout.n_bytes, launches)

    def dense(self, name: str, rows: int, cols: int, kernel: str) -> None:
        """One dense matrix; as many copies as no cache holds."""
        layout = MatrixLayout(BY_NAME[name], rows, cols)
        data = random_planes(layout)
        n_copies = max(1, min(LAUNCHES, POOL_BYTES // layout.n_bytes))
        weights = [DeviceMatrix(layout, data.clone()) for _ in range(n_copies)]
        x = activation(self.rows, cols, quantised=self.fast)
        out = torch.empty(self.rows, layout.padded_rows, device=CUDA)
        for tile, t in self.tunings("matvec"):
            self.report(
                kernel, name, tile, layout.n_bytes, [lambda w=w, t=t: matvec(x, w, out, tuning=t) for w in weights]
            )

    def norm(self) -> None:
        x = torch.randn(self.rows, D_MODEL, device=CUDA)
        weight = torch.ones(D_MODEL, device=CUDA)
        out = Activation.empty(self.rows, D_MODEL, CUDA, quantised=self.fast)
        self.report("norm", "F32", None, x.numel() * 8, [lambda: rms_norm(x, weight, out, 1e-6)] * LAUNCHES)
        self.report("quantise", "F32", None, x.numel() * 5, [lambda: quantise(out)] * LAUNCHES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    quantised = ",".join(f.name for f in FORMATS.values() if f.integer)
    parser.add_argument("--formats", default=quantised, help="formats of the experts; default: %(default)s")
    parser.add_argument("--picks", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--mode", choices=("fast", "reference"), default="fast")
    parser.add_argument("--only", default="gate_up,down,step,head,dense,norm", help="which kernels")
    args = parser.parse_args()
    only = set(args.only.split(","))
    bench = Bench(args)
    for name in args.formats.split(","):
        bench.experts(name, only)
    if "head" in only:
        bench.dense("Q6_K", N_VOCAB, D_MODEL, "head")
    if "dense" in only:
        bench.dense("Q4_K", 4096, D_MODEL, "q_proj")
        bench.dense("Q6_K", 512, D_MODEL, "v_proj")
        bench.dense("Q4_K", D_MODEL, 4096, "o_proj")
    if "norm" in only:
        bench.norm()
    print(json.dumps({"ceiling_gb_per_s": bench.ceiling, "results": bench.results}))


if __name__ == "__main__":
    main()
