"""What a layer does, as frozen descriptions: an architecture's file says which, the loader finds tensors for them, the ops compute them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.model.rope import Rope
    from hotset.model.routing import RouterRule

HeadNorm = Literal["none", "head", "whole", "unit"]
Gate = Literal["none", "query", "sigmoid", "softplus"]
Kind = Literal["silu", "gelu", "relu", "relu squared", "swiglu oai"]
Source = Literal["residual", "layer input", "mixer input"]


@dataclass(frozen=True)
class Temperature:
    """Queries grow with the position: times 1 + scale ln(1 + floor((position + 1) / step)) (Llama 4)."""

    scale: float
    step: int

    def factors(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """What each row's queries are multiplied with: [m, 1]."""
        steps = np.floor((positions + 1) / self.step)
        return np.asarray(1 + self.scale * np.log1p(steps), np.float32)[:, None]


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention over keys of width `d_key` and values of width `d_value`.

    `qk_norm` says what of q and k is normed: each "head", the "whole" width at once, each head without a weight ("unit"), or nothing;
    `norm_optional` where a file may lack the weights; before the rotation unless `norm_after_rope`. `scale` multiplies scores (0 is
    d_key^-0.5); `softcap` c makes them c tanh(score / c). A row sees the last `window` positions, or its own chunk of `chunk`, 0 being all.
    `gate` multiplies what was attended: by the sigmoid of values that q's matrix gives beside each head ("query"), or by the sigmoid or
    softplus of a matrix of its own, one value per element or per head. `clamp` limits q, k and v. `keys_are_values` where a file has no v.
    """

    n_heads: int
    n_kv_heads: int
    d_key: int
    d_value: int
    rope: Rope | None
    scale: float = 0.0
    qk_norm: HeadNorm = "none"
    norm_optional: bool = False
    norm_after_rope: bool = False
    unit_values: bool = False
    keys_are_values: bool = False
    window: int = 0
    chunk: int = 0
    sinks: bool = False
    softcap: float = 0.0
    gate: Gate = "none"
    clamp: float = 0.0
    temperature: Temperature | None = None

    @property
    def score_scale(self) -> float:
        return float(self.scale or self.d_key**-0.5)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): what is stored is one latent of `kv_rank` and one rotated key of `d_rope` per position.

    q comes through a bottleneck of `q_rank`, 0 being none. Per head, the first `d_nope` values of q meet the latent through k_b, the other
    `d_rope` meet the rotated key; the latents attended become `d_value` values through v_b.
    """

    n_heads: int
    q_rank: int
    kv_rank: int
    d_nope: int
    d_rope: int
    d_value: int
    rope: Rope | None
    scale: float
    temperature: Temperature | None = None

    @property
    def d_query(self) -> int:
        return self.d_nope + self.d_rope

    @property
    def d_stored(self) -> int:
        return self.kv_rank + self.d_rope


@dataclass(frozen=True)
class ShortConvolution:
    """Gated causal convolution over the last `width` positions of each channel (LFM2): y = C * conv(B * x)."""

    n_channels: int
    width: int


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta rule (Yang et al. 2024) after a causal convolution of `width`: a state d_key x d_value for each of n_value_heads.

    `interleaved`: neighbouring value heads share a key head (h // (n_value_heads / n_key_heads)), else every n_key_heads-th one (h % n_key_heads).
    """

    n_key_heads: int
    n_value_heads: int
    d_key: int
    d_value: int
    width: int
    interleaved: bool

    @property
    def key_width(self) -> int:
        return self.n_key_heads * self.d_key

    @property
    def value_width(self) -> int:
        return self.n_value_heads * self.d_value

    @property
    def n_channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width


Mixer: TypeAlias = "Attention | LatentAttention | ShortConvolution | DeltaNet"


@dataclass(frozen=True)
class Activation:
    """How gate and up become the hidden values: f(gate) * up; "swiglu oai" is gate sigmoid(1.702 gate) (up + 1).

    `limit` bounds the gate from above and up on both sides first, 0 being none.
    """

    kind: Kind = "silu"
    limit: float = 0.0


@dataclass(frozen=True)
class Dense:
    """A feed-forward network that every token takes; `suffix` of its tensors is "" or "_shexp". Widths are read from the file.

    `row_gate` names a vector whose product with the input, through a sigmoid, multiplies the result (the shared expert of Qwen2-MoE).
    """

    suffix: str = ""
    activation: Activation = Activation()
    row_gate: str = ""
    gated: bool = True


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer, each of width `d_expert`.

    The router reads the same normed rows as the experts, the layer's raw input ("layer input"), or the rows normed without weight, times
    d_model^-0.5 and a vector of the file ("scaled", Gemma 4). `weights_on_input` multiplies the experts' input instead of their output.
    `selection_bias` names the tensor of a bias that counts for picking alone; the file may have none.
    """

    router: RouterRule
    d_expert: int
    activation: Activation = Activation()
    gated: bool = True
    router_input: Literal["normed", "layer input", "scaled"] = "normed"
    selection_bias: str = ""
    weights_on_input: bool = False


@dataclass(frozen=True)
class Branch:
    """Parts of a feed-forward step that read the same rows: those of `source`, normed by the tensors named `norm` ("" leaves them)."""

    parts: tuple[Dense | Experts, ...]
    norm: str = "ffn_norm"
    post_norm: str = ""
    source: Source = "residual"


@dataclass(frozen=True)
class LayerRule:
    """One layer: x += residual_scale * post_norm(mixer(norm(x))), then the same with the sum of the feed branches times `feed_scale`.

    Norms are named after their tensors, "" being none. `output_scale`: the file has a number that multiplies x at the end.
    """

    mixer: Mixer | None
    feed: tuple[Branch, ...]
    mixer_norm: str = "attn_norm"
    mixer_post_norm: str = ""
    feed_post_norm: str = ""
    feed_scale: float = 1.0
    residual_scale: float = 1.0
    output_scale: bool = False

    @property
    def experts(self) -> Experts | None:
        """The routed experts, if this layer has any."""
        return next((p for b in self.feed for p in b.parts if isinstance(p, Experts)), None)


@dataclass(frozen=True)
class Norm:
    """x / rms(x) * weight, or with `centred` the mean taken off first (layer norm); `bias` tensors are added where a file has them."""

    eps: float
    centred: bool = False


def mean_scale(width: int) -> float:
    """What some models multiply embeddings with: the square root of their width."""
    return math.sqrt(width)
