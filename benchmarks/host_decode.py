"""Decoding on the CPU against a plain read of memory: how much of what the memory allows is reached?

    python benchmarks/host_decode.py                       # 24 layers of Qwen3-30B-A3B's shape: 9 GB on disk, 18 GB of memory
    python benchmarks/host_decode.py --shape tiny --threads 1,2

A token reads all dense weights and the spans of its picks; nothing else is counted (keys and values are few). Tokens rotate, so picks
do too: what is read comes from memory, not from the CPU's caches. Rates are interleaved: read, decode, read, decode, for each number
of threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from make_model import SHAPES, Shape, write_model

import hotset
from hotset.engine.host import HostRunner
from hotset.gguf import open_gguf
from hotset.model import model_config
from hotset.model.batch import step_batch
from hotset.model.experts import expert_layouts
from hotset.model.tensors import Tensors
from hotset.plan.dram import buffer, read_rate
from hotset.plan.traffic import traffic

GB = 1e9
BAR = 0.6
BAR_16 = 0.45
# A prime, so that tokens come from all over the vocabulary and none comes twice.
STRIDE = 1009


@dataclass(frozen=True)
class Row:
    """What one number of threads reaches: bytes per second decoded and plainly read."""

    threads: int
    tokens_per_s: float
    decode_gb_s: float
    read_gb_s: float

    @property
    def ratio(self) -> float:
        return self.decode_gb_s / self.read_gb_s

    @property
    def bar(self) -> float:
        return BAR if self.threads <= 8 else BAR_16


def bytes_per_token(path: Path) -> tuple[int, int]:
    """Bytes of weights that a token reads, and bytes of all experts."""
    with open_gguf(path) as file:
        config = model_config(file.metadata)
        found = traffic(file, config, expert_layouts(Tensors(file), config))
    return found.per_token, found.bank


def token(i: int, n_vocab: int) -> int:
    return i * STRIDE % n_vocab


def decode_rate(runner: HostRunner, n: int, start: int) -> float:
    """Tokens per second over `n` steps from a fresh context."""
    n_vocab = runner.model.config.n_vocab
    ops = runner.ops(runner.kv(n + 1, "fast"), "fast")
    runner.step(ops, step_batch([token(start, n_vocab)], [0]))
    began = time.perf_counter()
    for i in range(n):
        runner.step(ops, step_batch([token(start + 1 + i, n_vocab)], [i + 1]))
    return n / (time.perf_counter() - began)


def measure(path: Path, threads: list[int], n_tokens: int, repeats: int) -> Iterator[Row]:
    per_token, bank = bytes_per_token(path)
    engine = hotset.load(path, device="cpu", record_steps=n_tokens, threads=threads[0])
    runner = engine.runner
    assert isinstance(runner, HostRunner)
    words = buffer(bank)
    decode_rate(runner, min(n_tokens, 8), 0)
    print(
        f"{per_token / GB:.3f} GB of weights per token, experts {bank / GB:.1f} GB, plain reads of {words.nbytes / GB:.1f} GB"
    )
    for n_threads in threads:
        runner.threads = n_threads
        reads, rates = [], []
        for repeat in range(repeats):
            reads.append(read_rate(words, n_threads, 1))
            rates.append(decode_rate(runner, n_tokens, 1 + repeat * (n_tokens + 1)))
        rate = statistics.median(rates)
        yield Row(n_threads, rate, rate * per_token / GB, statistics.median(reads) / GB)
    picks = runner.model.cache.recorded_picks()[:, :, 0]
    distinct = statistics.fmean(len(np.unique(picks[:, layer])) for layer in range(picks.shape[1]))
    print(
        f"the last {len(picks)} tokens picked {distinct:.0f} of {engine.config.n_experts} experts in each layer (mean)"
    )


def run(path: Path, shape: Shape, options: argparse.Namespace) -> list[Row]:
    if not path.exists():
        began = time.perf_counter()
        write_model(path, shape)
        print(f"wrote {path.stat().st_size / GB:.1f} GB in {time.perf_counter() - began:.0f} s")
    print("| threads | tokens/s | decode GB/s | plain read GB/s | ratio | bar |\n| --- | --- | --- | --- | --- | --- |")
    rows = []
    for row in measure(path, options.threads, options.tokens, options.repeats):
        rows.append(row)
        print(
            f"| {row.threads} | {row.tokens_per_s:.2f} | {row.decode_gb_s:.1f} | {row.read_gb_s:.1f} | {row.ratio:.2f} | {row.bar:.2f} |",
            flush=True,
        )
    return rows


def thread_counts(text: str | None) -> list[int]:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [int(n) for n in text.split(",")] if text else [n for n in (1, 2, 4, 8, 16) if n <= available]


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU decoding against a plain read of memory.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=thread_counts, default=thread_counts(None), metavar="N,...")
    parser.add_argument(
        "--file", type=Path, help="where the model is, or is to stay; by default it is made and removed"
    )
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    layers = min(options.layers, shape.n_layers)
    shape = replace(shape, n_layers=layers, n_vocab=options.vocab, tied=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = run(options.file or Path(folder) / "model.gguf", shape, options)
    facts = [{**asdict(row), "ratio": row.ratio, "bar": row.bar, "holds": row.ratio >= row.bar} for row in rows]
    print(json.dumps({"shape": asdict(shape), "rows": facts}))


if __name__ == "__main__":
    main()
