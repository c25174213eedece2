"""The metadata of a file as architectures read it: checked counts, and the rules that many of them share; keys as llama.cpp writes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import FileError, UnsupportedError
from hotset.model.config import ModelConfig
from hotset.model.rope import Pairs, Rope, Yarn, yarn_magnitude
from hotset.model.routing import RouterRule, Scoring
from hotset.model.rules import Attention, Branch, DeltaNet, Dense, Experts, LatentAttention, LayerRule, Norm

if TYPE_CHECKING:
    from hotset.gguf import Metadata

SCORINGS: dict[int, Scoring] = {1: "softmax", 2: "sigmoid", 3: "softmax of picks"}
SCALINGS = ("none", "linear", "yarn", "longrope")
LONG_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")
FREQUENCIES = ("rope_freqs.weight",)


class Keys:
    """Numbers of one architecture's metadata; FileError for what is no sound number, UnsupportedError for what is not known."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.arch = metadata.arch

    def count(self, key: str, default: int | None = None) -> int:
        """A count from 1 on; where it may be left out the default must be one too. A file may write it once for each block."""
        return self._checked(key, self._one_for_all(key, default), low=1)

    def number(self, key: str, default: int = 0) -> int:
        """A count that may be 0."""
        return self._checked(key, self._one_for_all(key, default), low=0)

    def _one_for_all(self, key: str, default: int | None) -> int:
        if key != "block_count" and isinstance(self.arch.get(key), np.ndarray):
            values = sorted(set(self.arch.ints(key, self.n_blocks)))
            if len(values) > 1:
                raise UnsupportedError(
                    self.arch.path, key, f"differs from layer to layer ({values[0]} to {values[-1]})", value=values,
                    hint="this version wants one number for all layers here",
                )  # fmt: skip
            return values[0]
        return self.arch.int(key) if default is None else self.arch.int(key, default)

    def _checked(self, key: str, value: int, low: int) -> int:
        if not low <= value < 2**31:
            raise FileError(self.arch.path, key, f"is {value}, which is no count", value=value)
        return value

    def per_layer(self, key: str, default: int | None = None) -> list[int]:
        """One count for each block, 0 where an array says so; the file may write one number for all."""
        if isinstance(self.arch.get(key), np.ndarray):
            return self.arch.ints(key, self.n_blocks, low=0, high=2**31 - 1)
        return [self.count(key, default)] * self.n_blocks

    def positive(self, key: str, default: float) -> float:
        """A number above 0; 0 is the default, as files write it for what they do not use."""
        value = self.arch.float(key, default) or default
        if value <= 0:
            raise FileError(self.arch.path, key, f"is {value:g}, which should be positive", value=value)
        return value

    @cached_property
    def n_blocks(self) -> int:
        """Blocks in the file, those of speculative layers at the end included."""
        return self.count("block_count")

    @cached_property
    def n_layers(self) -> int:
        n_more = self.number("nextn_predict_layers")
        if n_more >= self.n_blocks:
            raise FileError(
                self.arch.path,
                "nextn_predict_layers",
                f"{n_more} of {self.n_blocks} blocks leave no layer",
                value=n_more,
            )
        return self.n_blocks - n_more

    @cached_property
    def d_model(self) -> int:
        return self.count("embedding_length")

    @cached_property
    def n_heads(self) -> list[int]:
        return self.per_layer("attention.head_count")

    @cached_property
    def n_kv_heads(self) -> list[int]:
        return self.per_layer("attention.head_count_kv", self.n_heads[0])

    @property
    def n_experts(self) -> int:
        return self.number("expert_count")

    @property
    def n_dense(self) -> int:
        """Layers at the beginning that have no experts."""
        return self.number("leading_dense_block_count")

    @cached_property
    def d_key(self) -> int:
        return self.count("attention.key_length", self.d_model // max(self.n_heads))

    def vocabulary(self) -> int:
        if "tokenizer.ggml.tokens" in self.metadata:
            return len(self.metadata["tokenizer.ggml.tokens"])
        return self.count("vocab_size")

    def norm(self, *, centred: bool = False) -> Norm:
        """The rule of all norms."""
        key = "attention.layer_norm_epsilon" if centred else "attention.layer_norm_rms_epsilon"
        value = self.arch.float(key)
        if not 0 <= value < 1:
            raise FileError(self.arch.path, key, f"is {value:g}, which is no small positive number", value=value)
        return Norm(value, centred)

    def sliding(self, period: int, *, full_first: bool = False) -> list[bool]:
        """Which layers see a window only: as the file says, else all but the last (or first) of every `period`."""
        key = "attention.sliding_window_pattern"
        if not self.number("attention.sliding_window"):
            return [False] * self.n_blocks
        if isinstance(self.arch.get(key), np.ndarray):
            return [bool(flag) for flag in self.arch.ints(key, self.n_blocks, low=0, high=1)]
        period = self.count(key, period)
        return [(i % period != 0) if full_first else (i % period < period - 1) for i in range(self.n_blocks)]

    def window(self, *, slides: bool) -> int:
        return self.count("attention.sliding_window") if slides else 0

    def attention(self, rope: Rope | None, layer: int = 0, *, swa: bool = False, **rules: Any) -> Attention:
        """The attention of a layer; with `swa` the widths that the file has for layers with a window, where it has such."""
        n_heads, n_kv = self.n_heads[layer], self.n_kv_heads[layer]
        if not n_kv or n_heads % n_kv:
            raise FileError(
                self.arch.path, "attention.head_count_kv", f"{n_kv} does not divide {n_heads} heads", value=n_kv
            )
        d_key, d_value = self.d_key, self.count("attention.value_length", self.d_key)
        if swa:
            d_key = self.count("attention.key_length_swa", d_key)
            d_value = self.count("attention.value_length_swa", d_value)
        return Attention(n_heads, n_kv, d_key, d_value, rope, window=self.window(slides=swa), **rules)

    def latent_attention(self, **rules: Any) -> LatentAttention:
        """DeepSeek's attention; files with k_b and v_b give the widths of a head under keys of their own."""
        n_heads, kv_rank = self.n_heads[0], self.count("attention.kv_lora_rank")
        d_query = self.count("attention.key_length_mla", self.d_key)
        d_value = self.count("attention.value_length_mla", self.count("attention.value_length", d_query))
        d_rope = self.count("rope.dimension_count")
        if d_rope >= d_query:
            raise FileError(self.arch.path, "rope.dimension_count", f"{d_rope} of {d_query} dimensions", value=d_rope)
        return LatentAttention(
            n_heads=n_heads,
            q_rank=self.number("attention.q_lora_rank"),
            kv_rank=kv_rank,
            d_nope=d_query - d_rope,
            d_rope=d_rope,
            d_value=d_value,
            rope=self.rope("neighbours", width=d_rope),
            scale=self.latent_score_factor() * d_query**-0.5,
            **rules,
        )

    def delta_net(self, *, interleaved: bool) -> DeltaNet:
        """The gated delta rule of a file's state-space keys."""
        inner, n_value_heads = self.count("ssm.inner_size"), self.count("ssm.time_step_rank")
        n_key_heads, d_key = self.count("ssm.group_count"), self.count("ssm.state_size")
        if inner % n_value_heads or n_value_heads % n_key_heads:
            raise FileError(
                self.arch.path,
                "ssm.time_step_rank",
                f"{n_value_heads} heads for {n_key_heads} key heads and a width of {inner}",
                value=n_value_heads,
            )
        width = self.count("ssm.conv_kernel")
        return DeltaNet(n_key_heads, n_value_heads, d_key, inner // n_value_heads, width, interleaved)

    def rope(
        self, pairs: Pairs = "halves", *, swa: bool = False, factors: bool = False, width: int | None = None
    ) -> Rope:
        """Rotary positions; `factors`: the file may have a tensor of them; `width` is that of what turns, a head's key."""
        width = width or (self.count("attention.key_length_swa", self.d_key) if swa else self.d_key)
        n_rotated = self.count("rope.dimension_count", width)
        theta = self.arch.float("rope.freq_base", 10000.0)
        if swa:
            n_rotated = self.count("rope.dimension_count_swa", n_rotated)
            theta = self.arch.float("rope.freq_base_swa", theta)
        if n_rotated > width or n_rotated % 2:
            raise FileError(
                self.arch.path, "rope.dimension_count", f"{n_rotated} of {width} dimensions", value=n_rotated
            )
        if not theta > 0:
            raise FileError(self.arch.path, "rope.freq_base", f"is {theta}, which should be positive", value=theta)
        kind, factor = self._scaling()
        magnitude = self.positive("rope.scaling.attn_factor", 1.0)
        yarn = self._yarn() if kind == "yarn" else None
        tensors = FREQUENCIES if factors else ()
        return Rope(
            theta=theta,
            n_rotated=n_rotated,
            factor=factor,
            pairs=pairs,
            yarn=yarn,
            magnitude=magnitude * self._yarn_magnitude(factor) if yarn else magnitude,
            tensors=tensors,
        )

    def long_rope(self, pairs: Pairs = "halves") -> Rope:
        """Rotary positions whose factors depend on whether the context is longer than the original one (Phi-3)."""
        rope = self.rope(pairs)
        short = self.number("rope.scaling.original_context_length", self.count("context_length"))
        return Rope(rope.theta, rope.n_rotated, 1.0, pairs, None, rope.magnitude, LONG_SHORT, short)

    def _scaling(self) -> tuple[str, float]:
        """How positions are stretched and by what factor; a factor without a kind is linear, and older files call it scale_linear."""
        kind = self.arch.str("rope.scaling.type", "linear")
        if kind not in SCALINGS:
            raise UnsupportedError(
                self.arch.path,
                "rope.scaling.type",
                f"{kind!r} is not supported",
                value=kind,
                hint=f"this version knows {', '.join(SCALINGS)}",
            )
        if kind not in ("linear", "yarn"):
            return kind, 1.0
        return kind, self.positive("rope.scaling.factor", self.positive("rope.scale_linear", 1.0))

    def _yarn(self) -> Yarn:
        return Yarn(
            n_ctx_original=self.count("rope.scaling.original_context_length", self.count("context_length")),
            beta_fast=self.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.positive("rope.scaling.yarn_beta_slow", 1.0),
            share=self.positive("rope.scaling.yarn_ext_factor", 1.0),
        )

    def _yarn_magnitude(self, factor: float) -> float:
        """DeepSeek writes 0.1 mscale_all_dim as yarn_log_multiplier and puts the magnitude into the scores' scale instead."""
        return 1.0 if self.arch.float("rope.scaling.yarn_log_multiplier", 0.0) else yarn_magnitude(factor)

    def latent_score_factor(self) -> float:
        """What yarn makes of the scores' scale in files with a yarn_log_multiplier: (0.1 mscale_all_dim ln(factor) + 1)^2."""
        kind, factor = self._scaling()
        weight = self.arch.float("rope.scaling.yarn_log_multiplier", 0.0) / 0.1
        return yarn_magnitude(factor, weight) ** 2 if kind == "yarn" else 1.0

    def router(self, scoring: Scoring = "softmax", *, renormalise: bool = True, scale: float = 1.0) -> RouterRule:
        """The router's rule: the file's word before the defaults of the architecture."""
        n_experts, n_picks = self.count("expert_count"), self.count("expert_used_count")
        if n_picks > n_experts:
            raise FileError(
                self.arch.path, "expert_used_count", f"{n_picks} picks of {n_experts} experts", value=n_picks
            )
        n_groups = max(1, self.number("expert_group_count", 1))
        n_groups_used = self.number("expert_group_used_count", n_groups) or n_groups
        if n_groups_used > n_groups or n_experts % n_groups or n_picks > n_groups_used * (n_experts // n_groups):
            raise FileError(
                self.arch.path,
                "expert_group_used_count",
                f"{n_picks} picks from {n_groups_used} of {n_groups} groups of {n_experts} experts",
                value=n_groups_used,
            )
        return RouterRule(
            n_experts=n_experts,
            n_picks=n_picks,
            scoring=self._scoring(scoring),
            renormalise=self.arch.bool("expert_weights_norm", renormalise),
            scale=self.arch.float("expert_weights_scale", scale),
            n_groups=n_groups,
            n_groups_used=n_groups_used,
        )

    def _scoring(self, default: Scoring) -> Scoring:
        code = self.number("expert_gating_func")
        if not code:
            return default
        if code not in SCORINGS:
            raise UnsupportedError(
                self.arch.path,
                "expert_gating_func",
                f"{code} is not supported",
                value=code,
                hint=f"this version knows {', '.join(f'{n} ({name})' for n, name in SCORINGS.items())}",
            )
        return SCORINGS[code]

    def experts(
        self, router: RouterRule | None = None, *, width: str = "expert_feed_forward_length", **rules: Any
    ) -> Experts:
        """The experts of a layer; `width` is the key of theirs."""
        return Experts(router or self.router(), self.count(width), **rules)

    def shared(self, **rules: Any) -> tuple[Dense, ...]:
        """The shared expert, where the file speaks of one."""
        has = self.number("expert_shared_count") or self.number("expert_shared_feed_forward_length")
        return (Dense("_shexp", **rules),) if has else ()

    def feed(self, layer: int, *experts: Dense | Experts, norm: str = "ffn_norm") -> tuple[Branch, ...]:
        """One branch: the experts given, or a plain network in the leading dense layers."""
        return (Branch((Dense(),) if layer < self.n_dense else experts, norm),)

    def model(self, rule: Callable[[int], LayerRule], *, norm: Norm | None = None, **rules: Any) -> ModelConfig:
        """The config whose layers are `rule(0)`, `rule(1)` and so on."""
        return ModelConfig(
            architecture=self.metadata.architecture,
            name=self.metadata.str("general.name", self.metadata.path.stem),
            d_model=self.d_model,
            n_vocab=self.vocabulary(),
            n_ctx_train=self.count("context_length"),
            norm=norm or self.norm(),
            layers=tuple(rule(i) for i in range(self.n_layers)),
            **rules,
        )
