"""The weights of a model, placed: one dataclass for each kind of rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hotset.model.rules import Branch, Dense, Experts, LayerRule
    from hotset.quant.layout import Bytes, MatrixLayout, SpanLayout


class Place(Protocol):
    """Puts weights where they are computed with: host memory or a GPU."""

    def matrix(
        self,
        layout: MatrixLayout,
        blocks: Bytes,
        *,
        n: int = 1,
        bias: NDArray[np.float32] | None = None,
        scale: float = 1.0,
    ) -> Any:
        """GGUF bytes of `n` matrices -> what the ops of this place multiply with: products times `scale`, plus `bias` float32 [rows]."""

    def vector(self, values: NDArray[np.float32]) -> Any:
        """Float32 [...] -> the same where it is needed."""


@dataclass(frozen=True, eq=False)
class NormWeights:
    """What a norm multiplies with, and adds where the file has a bias; all ones where the model norms without weights."""

    weight: Any
    bias: Any = None


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """`v` is None where keys are values; norms are None where there are none; `gate` multiplies what was attended, `sinks` [n_heads]."""

    q: Any
    k: Any
    v: Any
    output: Any
    q_norm: Any = None
    k_norm: Any = None
    v_norm: Any = None
    gate: Any = None
    sinks: Any = None


@dataclass(frozen=True, eq=False)
class LatentWeights:
    """`q_down` and its norm are None without a bottleneck; `k_up` [n_heads][kv_rank, d_nope] and `v_up` [n_heads][d_value, kv_rank] are stacks."""

    q_down: Any
    q_norm: NormWeights | None
    q: Any
    kv_down: Any
    kv_norm: Any
    k_up: Any
    v_up: Any
    output: Any


@dataclass(frozen=True, eq=False)
class ConvolutionWeights:
    """`kernel` float32 [n_channels, width], the newest position last."""

    inner: Any
    kernel: Any
    output: Any


@dataclass(frozen=True, eq=False)
class DeltaWeights:
    """`qkv` and `z` of the input; per value head `beta`, `alpha`, and float32 [n_value_heads] `decay` (negative) and `shift`."""

    qkv: Any
    z: Any
    beta: Any
    alpha: Any
    kernel: Any
    decay: Any
    shift: Any
    norm: Any
    output: Any


@dataclass(frozen=True, eq=False)
class DenseWeights:
    """`row_gate` is a matrix of one row, or None."""

    rule: Dense
    gate: Any
    up: Any
    down: Any
    row_gate: Any = None


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """All of a layer's experts but their matrices, which lie in the bank under `index`. Biases and scales are by expert, float32 [n_experts, ...]."""

    rule: Experts
    index: int
    span: SpanLayout
    router: Any
    router_scale: NormWeights | None = None
    selection_bias: Any = None
    gate_bias: Any = None
    up_bias: Any = None
    down_bias: Any = None
    gate_scale: Any = None
    up_scale: Any = None
    down_scale: Any = None


@dataclass(frozen=True, eq=False)
class BranchWeights:
    rule: Branch
    norm: NormWeights | None
    parts: tuple[DenseWeights | ExpertWeights, ...]
    post_norm: NormWeights | None


MixerWeights: TypeAlias = AttentionWeights | LatentWeights | ConvolutionWeights | DeltaWeights


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one layer; `output_scale` multiplies its result."""

    index: int
    rule: LayerRule
    mixer_norm: NormWeights | None
    mixer: MixerWeights | None
    mixer_post_norm: NormWeights | None
    feed: tuple[BranchWeights, ...]
    feed_post_norm: NormWeights | None
    output_scale: float = 1.0

    @property
    def early_router(self) -> ExpertWeights | None:
        """The experts whose router reads the layer's raw input."""
        parts = (part for branch in self.feed for part in branch.parts)
        return next((p for p in parts if isinstance(p, ExpertWeights) and p.rule.router_input == "layer input"), None)

    @property
    def keeps_input(self) -> bool:
        """Whether a branch reads what the layer was given, after attention has been added to it."""
        return any(branch.rule.source == "layer input" for branch in self.feed)


@dataclass(frozen=True, eq=False)
class Weights:
    """All weights; `output` is `embedding` where the file ties them."""

    embedding: Any
    layers: tuple[Layer, ...]
    output_norm: NormWeights
    output: Any
