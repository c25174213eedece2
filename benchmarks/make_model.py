"""Write a Qwen3-MoE file of a known shape with random weights: it takes the memory and time of the real one, and says nothing.

    python benchmarks/make_model.py out.gguf --shape qwen3-30b-a3b --layers 24 --vocab 4096 --tied

The formats are those that llama-quantize chooses for Q4_K_M, but for --experts. The scales keep activations near 1, and the residual stream near the
token's embedding: which experts a token picks depends mostly on the token, so that text repeats picks and rotating tokens rotate them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotset.gguf import GGUFWriter
from hotset.quant.formats import FORMATS
from hotset.quant.random import random_weights

Bytes = NDArray[np.uint8]
# Random blocks are drawn once per format and scale, and laid down again and again from changing places.
POOL_BYTES = 2 << 20
CHUNK_BYTES = 1 << 20
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3-MoE model; `experts` is their format, instead of Q4_K_M's choice."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    n_experts: int
    n_picks: int
    d_expert: int
    n_vocab: int
    tied: bool = False
    experts: str | None = None

    def has_more_bits(self, layer: int) -> bool:
        """Whether Q4_K_M gives this layer's values and expert outputs six bits."""
        eighth = self.n_layers // 8
        return layer < eighth or layer >= 7 * self.n_layers // 8 or (layer - eighth) % 3 == 2


SHAPES = {
    "qwen3-30b-a3b": Shape(48, 2048, 32, 4, 128, 128, 8, 768, 151_936),
    # OLMoE-1B-7B's and gpt-oss-20b's experts, so that their recorded picks can be replayed; the rest is this architecture's.
    "olmoe-like": Shape(16, 2048, 16, 16, 128, 64, 8, 1024, 50_304),
    "gptoss-like": Shape(24, 2816, 44, 4, 64, 32, 4, 2816, 201_088),
    "tiny": Shape(4, 512, 8, 2, 64, 32, 4, 256, 4096),
}


class Source:
    """Hands out random tensor data, chunk by chunk."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[tuple[str, float], Bytes] = {}

    def chunks(self, ggml_type: str, shape: tuple[int, ...], deviation: float) -> Iterator[Bytes]:
        fmt = BY_NAME[ggml_type]
        left = int(np.prod(shape)) // fmt.block
        key = (ggml_type, deviation)
        if key not in self._pools:
            seed = int(self._rng.integers(1 << 32))
            self._pools[key] = random_weights(fmt, POOL_BYTES // fmt.block_bytes, fmt.block, deviation, seed)
        pool = self._pools[key]
        while left:
            n = min(left, CHUNK_BYTES // fmt.block_bytes)
            start = int(self._rng.integers(0, len(pool) - n + 1))
            yield pool[start : start + n].reshape(-1)
            left -= n

    def floats(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float32]:
        return self._rng.standard_normal(shape, np.float32) * np.float32(deviation)


def write_model(path: Path, shape: Shape, seed: int = 7) -> None:
    """Write the file."""
    writer = GGUFWriter(path, "qwen3moe")
    add_metadata(writer, shape)
    source = Source(seed)

    def add(name: str, size: tuple[int, ...], ggml_type: str, deviation: float) -> None:
        chunks: Callable[[], Iterator[Bytes]] = lambda: source.chunks(ggml_type, size, deviation)  # noqa: E731
        writer.tensor(f"{name}.weight", chunks, ggml_type, size)

    def ones(name: str, n: int) -> None:
        writer.tensor(f"{name}.weight", np.ones(n, np.float32))

    vocabulary = (shape.n_vocab, shape.d_model)
    add("token_embd", vocabulary, "Q6_K" if shape.tied else "Q4_K", 1.0)
    ones("output_norm", shape.d_model)
    if not shape.tied:
        add("output", vocabulary, "Q6_K", 0.02)
    for i in range(shape.n_layers):
        add_layer(shape, i, add, ones)
        router = source.floats((shape.n_experts, shape.d_model), 0.05)
        writer.tensor(f"blk.{i}.ffn_gate_inp.weight", router)
    writer.write()


def add_metadata(writer: GGUFWriter, shape: Shape) -> None:
    numbers = {
        "block_count": shape.n_layers,
        "context_length": 40960,
        "embedding_length": shape.d_model,
        "feed_forward_length": 8 * shape.d_expert,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.d_head,
        "attention.value_length": shape.d_head,
        "expert_count": shape.n_experts,
        "expert_used_count": shape.n_picks,
        "expert_feed_forward_length": shape.d_expert,
        "vocab_size": shape.n_vocab,
    }
    writer.metadata("general.name", "random weights")
    for key, value in numbers.items():
        writer.metadata(f"qwen3moe.{key}", value, "u32")
    writer.metadata("qwen3moe.rope.freq_base", 1e6, "f32")
    writer.metadata("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6, "f32")
    writer.metadata("general.file_type", 15, "u32")
    writer.metadata("tokenizer.ggml.model", "none")


def add_layer(
    shape: Shape, i: int, add: Callable[[str, tuple[int, ...], str, float], None], ones: Callable[[str, int], None]
) -> None:
    d, q, kv = shape.d_model, shape.n_heads * shape.d_head, shape.n_kv_heads * shape.d_head
    e, f = shape.n_experts, shape.d_expert
    better = "Q6_K" if shape.has_more_bits(i) else "Q4_K"
    gate_up, down = (shape.experts or "Q4_K", shape.experts or better)
    for name, n in (("attn_norm", d), ("ffn_norm", d), ("attn_q_norm", shape.d_head), ("attn_k_norm", shape.d_head)):
        ones(f"blk.{i}.{name}", n)
    add(f"blk.{i}.attn_q", (q, d), "Q4_K", 0.02)
    add(f"blk.{i}.attn_k", (kv, d), "Q4_K", 0.02)
    add(f"blk.{i}.attn_v", (kv, d), better, 0.02)
    add(f"blk.{i}.attn_output", (d, q), "Q4_K", 0.005)
    add(f"blk.{i}.ffn_gate_exps", (e, f, d), gate_up, 0.02)
    add(f"blk.{i}.ffn_up_exps", (e, f, d), gate_up, 0.02)
    add(f"blk.{i}.ffn_down_exps", (e, d, f), down, 0.005)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a Qwen3-MoE file of a known shape with random weights.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, help="instead of the shape's own number")
    parser.add_argument("--vocab", type=int, help="instead of the shape's own number")
    parser.add_argument("--tied", action="store_true", help="the embedding is the output too")
    parser.add_argument("--experts", choices=sorted(BY_NAME), help="format of the experts instead of Q4_K and Q6_K")
    options = parser.parse_args()
    shape = replace(SHAPES[options.shape], tied=options.tied, experts=options.experts)
    shape = replace(shape, n_layers=options.layers or shape.n_layers, n_vocab=options.vocab or shape.n_vocab)
    began = time.perf_counter()
    write_model(options.path, shape)
    size = options.path.stat().st_size
    print(f"{options.path}: {size / (1 << 30):.2f} GiB in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
