"""From a file's tensors to the weights of a model: every tensor is checked and placed exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hotset.errors import FileError, UnsupportedError
from hotset.quant.formats import FORMATS
from hotset.quant.layout import Bytes, MatrixLayout, SpanLayout

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile
    from hotset.gguf import TensorInfo
    from hotset.model.config import ModelConfig

EXPERT_ROLES = ("gate", "up", "down")


class Place(Protocol):
    """Puts weights where they are computed with: host memory or a GPU."""

    def matrix(self, layout: MatrixLayout, blocks: Bytes) -> Any:
        """GGUF bytes of a matrix -> a matrix that the ops of this place take."""

    def vector(self, values: NDArray[np.float32]) -> Any:
        """Float32 [n] -> the same where it is needed."""


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one layer but for its experts, which lie in the bank under `index`."""

    index: int
    attention_norm: Any
    q: Any
    k: Any
    v: Any
    q_norm: Any
    k_norm: Any
    attention_output: Any
    experts_norm: Any
    router: Any
    experts: SpanLayout


@dataclass(frozen=True, eq=False)
class Weights:
    """All weights; `output` is `embedding` where the file ties them."""

    embedding: Any
    layers: tuple[Layer, ...]
    output_norm: Any
    output: Any


class Tensors:
    """The tensors of a file by name, each handed out with the shape it must have; what is left over at the end is an error."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self._left = set(file.tensors)
        unknown = sorted(
            f"{t.name} ({t.ggml_type.name})" for t in file.tensors.values() if t.ggml_type.id not in FORMATS
        )
        if unknown:
            raise UnsupportedError(
                file.path,
                "tensor types",
                f"not supported yet: {', '.join(unknown)}",
                value=unknown,
                hint=f"this version computes with {', '.join(f.name for f in FORMATS.values())}",
            )

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """The tensor `name`; FileError where it is missing or shaped otherwise."""
        info = self.file.tensors.get(name)
        if info is None:
            raise FileError(self.file.path, name, "this tensor is missing")
        if info.shape != shape:
            raise FileError(
                self.file.path,
                name,
                f"its shape is {list(info.shape)}, the metadata say {list(shape)}",
                value=info.shape,
            )
        self._left.discard(name)
        return info

    def layout(self, name: str, shape: tuple[int, ...]) -> MatrixLayout:
        """The layout of a matrix [rows, cols] or of one of [experts, rows, cols]."""
        info = self.info(name, shape)
        return MatrixLayout(FORMATS[info.ggml_type.id], shape[-2], shape[-1])

    def matrix(self, name: str, shape: tuple[int, int], place: Place) -> Any:
        matrix = place.matrix(self.layout(name, shape), self.file.data(name))
        self.file.let_go(name)
        return matrix

    def values(self, name: str, n: int) -> NDArray[np.float32]:
        info = self.info(name, (n,))
        layout = MatrixLayout(FORMATS[info.ggml_type.id], 1, n)
        values: NDArray[np.float32] = layout.dequantize(layout.from_blocks(self.file.data(name)))[0]
        return values

    def finish(self) -> None:
        """FileError where tensors are left that no part of the model took."""
        if self._left:
            raise UnsupportedError(
                self.file.path,
                "tensors",
                f"the file holds tensors that this architecture does not use: {', '.join(sorted(self._left)[:8])}",
                value=sorted(self._left),
                hint="the file may be of a variant that this version does not know",
            )


def expert_layouts(tensors: Tensors, config: ModelConfig) -> tuple[SpanLayout, ...]:
    """The span of one expert for each layer; gate, up and down may all differ in format, also from layer to layer."""
    e, d, f = config.n_experts, config.d_model, config.d_expert
    shapes = {"gate": (e, f, d), "up": (e, f, d), "down": (e, d, f)}
    return tuple(
        SpanLayout(EXPERT_ROLES, tuple(tensors.layout(expert_tensor(i, role), shapes[role]) for role in EXPERT_ROLES))
        for i in range(config.n_layers)
    )


def expert_tensor(layer: int, role: str) -> str:
    return f"blk.{layer}.ffn_{role}_exps.weight"


def load_weights(tensors: Tensors, config: ModelConfig, spans: tuple[SpanLayout, ...], place: Place) -> Weights:
    """Everything but the experts' bytes, placed."""
    vocabulary = (config.n_vocab, config.d_model)
    embedding = tensors.matrix("token_embd.weight", vocabulary, place)
    tied = "output.weight" not in tensors
    weights = Weights(
        embedding=embedding,
        layers=tuple(_layer(tensors, config, i, span, place) for i, span in enumerate(spans)),
        output_norm=place.vector(tensors.values("output_norm.weight", config.d_model)),
        output=embedding if tied else tensors.matrix("output.weight", vocabulary, place),
    )
    tensors.finish()
    return weights


def _layer(tensors: Tensors, config: ModelConfig, i: int, span: SpanLayout, place: Place) -> Layer:
    d, q, kv = config.d_model, config.n_heads * config.d_head, config.n_kv_heads * config.d_head

    def matrix(name: str, rows: int, cols: int) -> Any:
        return tensors.matrix(f"blk.{i}.{name}.weight", (rows, cols), place)

    def vector(name: str, n: int) -> Any:
        return place.vector(tensors.values(f"blk.{i}.{name}.weight", n))

    return Layer(
        index=i,
        attention_norm=vector("attn_norm", d),
        q=matrix("attn_q", q, d),
        k=matrix("attn_k", kv, d),
        v=matrix("attn_v", kv, d),
        q_norm=vector("attn_q_norm", config.d_head),
        k_norm=vector("attn_k_norm", config.d_head),
        attention_output=matrix("attn_output", d, q),
        experts_norm=vector("ffn_norm", d),
        router=matrix("ffn_gate_inp", config.n_experts, d),
        experts=span,
    )
