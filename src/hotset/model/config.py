"""What a model is: its sizes and rules, read once from the file's metadata and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hotset.errors import UnsupportedError
from hotset.model.rules import Attention, DeltaNet, Experts, LatentAttention, LayerRule, Norm, ShortConvolution

if TYPE_CHECKING:
    from hotset.gguf import Metadata
    from hotset.model.keys import Keys
    from hotset.model.rope import Rope
    from hotset.model.routing import RouterRule
    from hotset.model.rules import Mixer


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and rules of one model; `n_ctx_train` is the context it was made for.

    Embeddings are multiplied by `embedding_scale`, logits by `logit_scale` and then bounded by `logit_softcap` (0: not). `output_norm` names
    the tensors of the last norm. `ignored` are tensors (by their name within a layer) that a layer with experts may hold and does not read.
    """

    architecture: str
    name: str
    d_model: int
    n_vocab: int
    n_ctx_train: int
    norm: Norm
    layers: tuple[LayerRule, ...]
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    output_norm: str = "output_norm"
    ignored: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def norm_eps(self) -> float:
        return self.norm.eps

    @cached_property
    def expert_layers(self) -> tuple[int, ...]:
        """The layers that have experts; the expert cache and the bank know them by their place in this list."""
        return tuple(i for i, rule in enumerate(self.layers) if rule.experts)

    @cached_property
    def experts(self) -> Experts | None:
        """The experts of the first layer that has some; all layers have equally many."""
        return self.layers[self.expert_layers[0]].experts if self.expert_layers else None

    @cached_property
    def attention(self) -> Attention | LatentAttention | None:
        """The attention of the first layer that has some."""
        kinds = (Attention, LatentAttention)
        return next((rule.mixer for rule in self.layers if isinstance(rule.mixer, kinds)), None)

    @property
    def n_experts(self) -> int:
        return self.experts.router.n_experts if self.experts else 0

    @property
    def n_picks(self) -> int:
        return self.experts.router.n_picks if self.experts else 0

    @property
    def d_expert(self) -> int:
        return self.experts.d_expert if self.experts else 0

    @property
    def router(self) -> RouterRule:
        assert self.experts
        return self.experts.router

    @property
    def rope(self) -> Rope | None:
        return self.attention.rope if self.attention else None

    @property
    def n_heads(self) -> int:
        return self.attention.n_heads if self.attention else 0

    @property
    def n_kv_heads(self) -> int:
        """Heads for keys and values; a latent counts as one."""
        return self.attention.n_kv_heads if isinstance(self.attention, Attention) else 1

    @property
    def d_head(self) -> int:
        """Width of a head's keys."""
        if isinstance(self.attention, Attention):
            return self.attention.d_key
        return self.attention.d_query if self.attention else 0

    @property
    def state_elements(self) -> int:
        """Numbers that the states of one sequence are, of layers that remember without storing positions."""
        return sum(_state_elements(rule.mixer) for rule in self.layers)


def _state_elements(mixer: Mixer | None) -> int:
    if isinstance(mixer, ShortConvolution):
        return mixer.n_channels * (mixer.width - 1)
    if isinstance(mixer, DeltaNet):
        return mixer.n_channels * (mixer.width - 1) + mixer.n_value_heads * mixer.d_key * mixer.d_value
    return 0


@dataclass(frozen=True)
class Architecture:
    """An architecture that hotset runs: its GGUF name, models that use it, how to read the config of a file, and whether GPU kernels know it."""

    name: str
    models: str
    read: Callable[[Keys], ModelConfig]
    on_gpu: bool = True


ARCHITECTURES: dict[str, Architecture] = {}


def architecture(
    name: str, models: str, *, on_gpu: bool = True
) -> Callable[[Callable[[Keys], ModelConfig]], Callable[[Keys], ModelConfig]]:
    """Register the function that reads the config of GGUF architecture `name`; `models` names some that use it."""

    def register(read: Callable[[Keys], ModelConfig]) -> Callable[[Keys], ModelConfig]:
        if name in ARCHITECTURES:
            raise ValueError(f"architecture {name} is registered twice")
        ARCHITECTURES[name] = Architecture(name, models, read, on_gpu)
        return read

    return register


def model_config(metadata: Metadata) -> ModelConfig:
    """The config of a file; UnsupportedError for an architecture that no module registered."""
    from hotset.model.keys import Keys

    name = metadata.architecture
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            metadata.path,
            "general.architecture",
            f"{name!r} is not supported",
            value=name,
            hint=f"this version runs {', '.join(sorted(ARCHITECTURES))}",
        )
    return ARCHITECTURES[name].read(Keys(metadata))
