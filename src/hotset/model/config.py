"""What a model is: its sizes and rules, read once from the file's metadata and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.errors import UnsupportedError

if TYPE_CHECKING:
    from hotset.gguf import Metadata
    from hotset.model.routing import RouterRule


@dataclass(frozen=True)
class Rope:
    """Rotary positions: pairs (i, i + n_rotated / 2) turn by position / (theta^(2 i / n_rotated) * factor)."""

    theta: float
    n_rotated: int
    factor: float = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and rules of one model; `n_ctx_train` is the context it was made for."""

    architecture: str
    name: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_expert: int
    n_vocab: int
    n_ctx_train: int
    norm_eps: float
    rope: Rope
    router: RouterRule

    @property
    def n_experts(self) -> int:
        return self.router.n_experts

    @property
    def n_picks(self) -> int:
        return self.router.n_picks


ARCHITECTURES: dict[str, Callable[[Metadata], ModelConfig]] = {}


def architecture(name: str) -> Callable[[Callable[[Metadata], ModelConfig]], Callable[[Metadata], ModelConfig]]:
    """Register the function that reads the config of GGUF architecture `name`."""

    def register(read: Callable[[Metadata], ModelConfig]) -> Callable[[Metadata], ModelConfig]:
        if name in ARCHITECTURES:
            raise ValueError(f"architecture {name} is registered twice")
        ARCHITECTURES[name] = read
        return read

    return register


def model_config(metadata: Metadata) -> ModelConfig:
    """The config of a file; UnsupportedError for an architecture that no module registered."""
    name = metadata.architecture
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            metadata.path,
            "general.architecture",
            f"{name!r} is not supported",
            value=name,
            hint=f"this version runs {', '.join(sorted(ARCHITECTURES))}",
        )
    return ARCHITECTURES[name](metadata)
