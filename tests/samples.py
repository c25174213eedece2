"""Small Qwen3-MoE files of random weights in any format."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hotset.gguf import GGUFWriter
from hotset.quant.formats import FORMATS
from hotset.quant.random import random_weights

BY_NAME = {f.name: f for f in FORMATS.values()}


def weights(name: str, rows: int, cols: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    """GGUF bytes of a matrix whose values have mean 0 and the deviation `spread` / sqrt(cols): 1 keeps activations at their size."""
    return random_weights(BY_NAME[name], rows, cols, spread * cols**-0.5, seed)


@dataclass(frozen=True)
class TinyMoE:
    """A small Qwen3-MoE; `formats` names the format of a tensor (F32 for all that it does not name)."""

    n_layers: int = 2
    d_model: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    d_head: int = 32
    d_expert: int = 32
    n_experts: int = 8
    n_picks: int = 2
    n_vocab: int = 50
    tied: bool = False
    formats: dict[str, str] = field(default_factory=dict)
    extra: dict[str, object] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the file."""
        d, f, e = self.d_model, self.d_expert, self.n_experts
        q, kv = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        shapes = {"token_embd": (self.n_vocab, d), "output_norm": (d,)}
        if not self.tied:
            shapes["output"] = (self.n_vocab, d)
        for i in range(self.n_layers):
            layer = {
                "attn_norm": (d,), "attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q),
                "attn_q_norm": (self.d_head,), "attn_k_norm": (self.d_head,), "ffn_norm": (d,), "ffn_gate_inp": (e, d),
                "ffn_gate_exps": (e, f, d), "ffn_up_exps": (e, f, d), "ffn_down_exps": (e, d, f),
            }  # fmt: skip
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        return {f"{name}.weight": shape for name, shape in shapes.items()}

    def metadata(self) -> dict[str, object]:
        """The keys below the architecture's name."""
        return {
            "block_count": self.n_layers,
            "context_length": 512,
            "embedding_length": self.d_model,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "attention.key_length": self.d_head,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "expert_count": self.n_experts,
            "expert_used_count": self.n_picks,
            "expert_feed_forward_length": self.d_expert,
            "vocab_size": self.n_vocab,
        } | self.extra

    def write(self, path: Path, *, leave_out=(), shapes=None, types=None, split=1) -> Path:
        """Write the file; `leave_out` names tensors, `shapes` and `types` change some to what the model does not expect."""
        writer = GGUFWriter(path, "qwen3moe", split=split)
        for key, value in self.metadata().items():
            if value is not None:
                writer.metadata(f"qwen3moe.{key}", value)
        for seed, (name, shape) in enumerate((self.shapes() | (shapes or {})).items()):
            if name not in leave_out:
                self._add(writer, name, shape, seed, (types or {}).get(name))
        writer.write()
        return path

    def _add(
        self, writer: GGUFWriter, name: str, shape: tuple[int, ...], seed: int, strange: tuple[str, int] | None
    ) -> None:
        if strange is not None:
            kind, row_bytes = strange
            writer.tensor(name, np.zeros(int(np.prod(shape[:-1])) * row_bytes, np.uint8), kind, shape)
        elif len(shape) == 1:
            writer.tensor(name, np.random.default_rng(seed).normal(1, 0.1, shape).astype(np.float32))
        else:
            kind = self.formats.get(name, "F32")
            # With the matrices' usual spread the router would find all experts about as good.
            spread = 2.0 if "gate_inp" in name else 1.0
            writer.tensor(name, weights(kind, int(np.prod(shape[:-1])), shape[-1], seed, spread), kind, shape)


def write_dense(path: Path, n_layers: int = 2, d_ff: int = 64) -> Path:
    """A small Qwen3 without experts."""
    tiny = TinyMoE(n_layers=n_layers)
    writer = GGUFWriter(path, "qwen3")
    writer.metadata("qwen3.feed_forward_length", d_ff)
    for key, value in tiny.metadata().items():
        if not key.startswith("expert"):
            writer.metadata(f"qwen3.{key}", value)
    shapes = {name: shape for name, shape in tiny.shapes().items() if "exps" not in name and "gate_inp" not in name}
    for i in range(n_layers):
        feed = {"ffn_gate": (d_ff, tiny.d_model), "ffn_up": (d_ff, tiny.d_model), "ffn_down": (tiny.d_model, d_ff)}
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in feed.items()}
    for seed, (name, shape) in enumerate(shapes.items()):
        tiny._add(writer, name, shape, seed, None)
    writer.write()
    return path
