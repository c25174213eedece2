"""From a file's tensors to the weights of a model: every tensor is checked and placed exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hotset.model.mixers import load_mixer
from hotset.model.rules import Dense, Experts
from hotset.model.weights import BranchWeights, DenseWeights, ExpertWeights, Layer, NormWeights, Weights
from hotset.quant.f32 import F32
from hotset.quant.layout import MatrixLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.model.config import ModelConfig
    from hotset.model.rules import Branch, LayerRule
    from hotset.model.tensors import Tensors
    from hotset.model.weights import Place
    from hotset.quant.layout import SpanLayout


class Loader:
    """Places tensors by name; inside a layer names are without its `blk.N.`."""

    def __init__(self, tensors: Tensors, config: ModelConfig, place: Place, prefix: str = "") -> None:
        self.tensors = tensors
        self.config = config
        self.place = place
        self.prefix = prefix

    def layer(self, index: int) -> Loader:
        return Loader(self.tensors, self.config, self.place, f"blk.{index}.")

    def has(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def matrix(self, stem: str, rows: int, cols: int) -> Any:
        """The matrix STEM.weight, with STEM.bias where the file has one."""
        (matrix,) = self.split(stem, cols, [np.arange(rows)])
        return matrix

    def split(self, stem: str, cols: int, rows: Sequence[NDArray[Any]]) -> list[Any]:
        """Matrices made of rows (by number) of STEM.weight, which has as many rows as there are numbers in all."""
        name, n = f"{self.prefix}{stem}.weight", sum(part.size for part in rows)
        fmt, blocks = self.tensors.blocks(name, (n, cols))
        bias, scale = self.maybe(f"{stem}.bias", n), self._scale(f"{stem}.scale")
        whole = len(rows) == 1
        matrices = [
            self.place.matrix(
                MatrixLayout(fmt, part.size, cols),
                (blocks if whole else np.ascontiguousarray(blocks[part])).reshape(-1),
                bias=bias if whole or bias is None else bias[part],
                scale=scale,
            )
            for part in rows
        ]
        self.tensors.file.let_go(name)
        return matrices

    def _scale(self, name: str) -> float:
        """The one number that multiplies a matrix's products; a tensor of that name may also be the scales of the input (Gemma 4's router)."""
        info = self.tensors.file.tensors.get(self.prefix + name)
        return float(self.values(name, 1)[0]) if info is not None and info.shape == (1,) else 1.0

    def stack(self, stem: str, n: int, rows: int, cols: int) -> Any:
        """`n` matrices of one tensor [n, rows, cols]."""
        name = f"{self.prefix}{stem}.weight"
        layout = self.tensors.layout(name, (n, rows, cols))
        return self.place.matrix(layout, self.tensors.file.data(name), n=n)

    def row(self, stem: str, n: int) -> Any:
        """The vector STEM.weight as a matrix of one row."""
        values = self.values(f"{stem}.weight", n)
        return self.place.matrix(MatrixLayout(F32, 1, n), values.view(np.uint8))

    def values(self, name: str, shape: int | tuple[int, ...]) -> NDArray[np.float32]:
        """The numbers of a tensor, given with its suffix, on the host."""
        return self.tensors.values(self.prefix + name, shape)

    def maybe(self, name: str, shape: int | tuple[int, ...]) -> NDArray[np.float32] | None:
        """The same, None where the file has none."""
        return self.values(name, shape) if self.has(name) else None

    def vector(self, name: str, shape: int | tuple[int, ...]) -> Any:
        """The numbers of a tensor, placed."""
        return self.place.vector(self.values(name, shape))

    def maybe_vector(self, name: str, shape: int | tuple[int, ...]) -> Any:
        return self.vector(name, shape) if self.has(name) else None

    def norm(self, stem: str, n: int) -> NormWeights:
        return NormWeights(self.vector(f"{stem}.weight", n), self.maybe_vector(f"{stem}.bias", n))

    def maybe_norm(self, stem: str, n: int) -> NormWeights | None:
        """None where the rule names no tensor."""
        return self.norm(stem, n) if stem else None


def resolved(config: ModelConfig, tensors: Tensors, n_ctx: int) -> ModelConfig:
    """The config with what depends on the file's tensors and the context in use: rotary factors."""
    return replace(config, layers=tuple(_with_factors(rule, tensors, n_ctx) for rule in config.layers))


def _with_factors(rule: LayerRule, tensors: Tensors, n_ctx: int) -> LayerRule:
    rope = getattr(rule.mixer, "rope", None)
    if rope is None or not rope.tensors or rope.factors or rope.tensor(n_ctx) not in tensors:
        return rule
    for name in rope.tensors:
        factors = tensors.values(name, rope.n_rotated // 2)
        if name == rope.tensor(n_ctx):
            chosen = factors
    return replace(rule, mixer=replace(rule.mixer, rope=rope.with_factors(chosen)))  # type: ignore[type-var]


def load_weights(tensors: Tensors, config: ModelConfig, spans: tuple[SpanLayout, ...], place: Place) -> Weights:
    """Everything but the experts' bytes, placed."""
    loader = Loader(tensors, config, place)
    n, d = config.n_vocab, config.d_model
    embedding = loader.matrix("token_embd", n, d)
    weights = Weights(
        embedding=embedding,
        layers=tuple(_layer(loader.layer(i), rule, i, spans) for i, rule in enumerate(config.layers)),
        output_norm=loader.norm(config.output_norm, d),
        output=loader.matrix("output", n, d) if loader.has("output.weight") else embedding,
    )
    tensors.finish(config)
    return weights


def _layer(loader: Loader, rule: LayerRule, index: int, spans: tuple[SpanLayout, ...]) -> Layer:
    d = loader.config.d_model
    scale = loader.values("layer_output_scale.weight", 1)[0] if rule.output_scale else 1.0
    return Layer(
        index=index,
        rule=rule,
        mixer_norm=loader.maybe_norm(rule.mixer_norm, d),
        mixer=load_mixer(loader, rule.mixer),
        mixer_post_norm=loader.maybe_norm(rule.mixer_post_norm, d),
        feed=tuple(_branch(loader, branch, index, spans) for branch in rule.feed),
        feed_post_norm=loader.maybe_norm(rule.feed_post_norm, d),
        output_scale=float(scale),
    )


def _branch(loader: Loader, rule: Branch, index: int, spans: tuple[SpanLayout, ...]) -> BranchWeights:
    d = loader.config.d_model
    return BranchWeights(
        rule=rule,
        norm=loader.maybe_norm(rule.norm, d),
        parts=tuple(
            _dense(loader, part) if isinstance(part, Dense) else _experts(loader, part, index, spans)
            for part in rule.parts
        ),
        post_norm=loader.maybe_norm(rule.post_norm, d),
    )


def _dense(loader: Loader, rule: Dense) -> DenseWeights:
    d, s = loader.config.d_model, rule.suffix
    width = loader.tensors.n_rows(f"{loader.prefix}ffn_up{s}.weight")
    return DenseWeights(
        rule=rule,
        gate=loader.matrix(f"ffn_gate{s}", width, d) if rule.gated else None,
        up=loader.matrix(f"ffn_up{s}", width, d),
        down=loader.matrix(f"ffn_down{s}", d, width),
        row_gate=loader.row(rule.row_gate, d) if rule.row_gate else None,
    )


def _experts(loader: Loader, rule: Experts, layer: int, spans: tuple[SpanLayout, ...]) -> ExpertWeights:
    d, f, n = loader.config.d_model, rule.d_expert, rule.router.n_experts
    index = loader.config.expert_layers.index(layer)
    scale = loader.values("ffn_gate_inp.scale", d) * np.float32(d**-0.5) if rule.router_input == "scaled" else None
    return ExpertWeights(
        rule=rule,
        index=index,
        span=spans[index],
        router=loader.matrix("ffn_gate_inp", n, d),
        router_scale=None if scale is None else NormWeights(loader.place.vector(scale)),
        selection_bias=loader.maybe_vector(rule.selection_bias, n) if rule.selection_bias else None,
        gate_bias=loader.maybe_vector("ffn_gate_exps.bias", (n, f)),
        up_bias=loader.maybe_vector("ffn_up_exps.bias", (n, f)),
        down_bias=loader.maybe_vector("ffn_down_exps.bias", (n, d)),
        gate_scale=loader.maybe_vector("ffn_gate_exps.scale", n),
        up_scale=loader.maybe_vector("ffn_up_exps.scale", n),
        down_scale=loader.maybe_vector("ffn_down_exps.scale", n),
    )
