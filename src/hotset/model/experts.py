"""Where the experts of a layer lie in a file: stacked, with gate and up in one tensor, or (files before 2024) one tensor per expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import UnsupportedError
from hotset.model.tensors import skipped_tensors
from hotset.quant.layout import Bytes, MatrixLayout, SpanLayout

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile
    from hotset.model.config import ModelConfig
    from hotset.model.rules import Experts
    from hotset.model.tensors import Tensors


@dataclass(frozen=True)
class ExpertSource:
    """The tensors of one role's matrices; of a fused tensor the `half` 0 or 1."""

    names: tuple[str, ...]
    half: int | None = None

    def blocks(self, file: ModelFile, n_experts: int) -> Bytes:
        """The GGUF bytes of the role's matrices, one expert after the other."""
        data = [file.data(name) for name in self.names]
        joined = data[0] if len(data) == 1 else np.concatenate([part.reshape(-1) for part in data])
        if self.half is not None:
            joined = joined.reshape(n_experts, 2, -1)[:, self.half]
        return np.ascontiguousarray(joined).reshape(-1)


def expert_roles(rule: Experts) -> tuple[str, ...]:
    """The matrices of one expert, in the order in which they lie in its span."""
    return ("gate", "up", "down") if rule.gated else ("up", "down")


def expert_source(file: ModelFile, layer: int, role: str, rule: Experts) -> ExpertSource:
    """Where a role's matrices of a layer lie."""
    stacked, fused = (f"blk.{layer}.ffn_{part}_exps.weight" for part in (role, "gate_up"))
    if stacked not in file.tensors and role in ("gate", "up") and fused in file.tensors:
        return ExpertSource((fused,), half=("gate", "up").index(role))
    single = tuple(f"blk.{layer}.ffn_{role}.{e}.weight" for e in range(rule.router.n_experts))
    if stacked not in file.tensors and any(name in file.tensors for name in single):
        return ExpertSource(single)
    return ExpertSource((stacked,))


def layer_tensors(file: ModelFile, config: ModelConfig, index: int) -> set[str]:
    """The names of the tensors that hold the experts of the `index`-th layer that has some."""
    layer = config.expert_layers[index]
    rule = config.layers[layer].experts
    assert rule
    return {name for role in expert_roles(rule) for name in expert_source(file, layer, role, rule).names}


def expert_tensors(file: ModelFile, config: ModelConfig) -> set[str]:
    """The names of all tensors that hold experts."""
    return {name for i in range(len(config.expert_layers)) for name in layer_tensors(file, config, i)}


def dense_bytes(file: ModelFile, config: ModelConfig) -> int:
    """File bytes of everything that is read and no expert."""
    others = expert_tensors(file, config) | skipped_tensors(file, config)
    return sum(info.n_bytes for name, info in file.tensors.items() if name not in others)


def expert_blocks(file: ModelFile, config: ModelConfig, index: int, role: str) -> Bytes:
    """The GGUF bytes of a role's matrices in the `index`-th layer that has experts."""
    layer = config.expert_layers[index]
    rule = config.layers[layer].experts
    assert rule
    return expert_source(file, layer, role, rule).blocks(file, rule.router.n_experts)


def expert_layouts(tensors: Tensors, config: ModelConfig) -> tuple[SpanLayout, ...]:
    """The span of one expert for each layer that has some; gate, up and down may all differ in format, also from layer to layer."""
    return tuple(_span(tensors, config, i) for i in config.expert_layers)


def _span(tensors: Tensors, config: ModelConfig, layer: int) -> SpanLayout:
    rule = config.layers[layer].experts
    assert rule
    roles = expert_roles(rule)
    return SpanLayout(roles, tuple(_layout(tensors, config.d_model, layer, role, rule) for role in roles))


def _layout(tensors: Tensors, d_model: int, layer: int, role: str, rule: Experts) -> MatrixLayout:
    """The layout of one expert's matrix; every tensor it comes from is checked."""
    source = expert_source(tensors.file, layer, role, rule)
    rows, cols = (d_model, rule.d_expert) if role == "down" else (rule.d_expert, d_model)
    n = rule.router.n_experts
    if source.half is not None:
        fused = tensors.layout(source.names[0], (n, 2 * rows, cols))
        return MatrixLayout(fused.fmt, rows, cols)
    if len(source.names) == 1:
        return tensors.layout(source.names[0], (n, rows, cols))
    layouts = [tensors.layout(name, (rows, cols)) for name in source.names]
    if others := {layout.fmt.name for layout in layouts[1:]} - {layouts[0].fmt.name}:
        raise UnsupportedError(
            tensors.file.path,
            source.names[0],
            f"is {layouts[0].fmt.name}, but other experts of this layer are {', '.join(sorted(others))}",
            hint="convert the model again: newer files hold all experts of a layer in one tensor",
        )
    return layouts[0]
