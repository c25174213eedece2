"""A checkpoint's config.json: getters that name what is missing, and the metadata that all architectures share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.errors import FileError

_MISSING: Any = object()


class Config:
    """The values of config.json; `int` and its like take the first of several names. FileError names the key."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    @classmethod
    def read(cls, path: Path) -> Config:
        """Read the file; of a model that also sees or hears, the part of its language model."""
        values = read_json(path)
        return cls(path, {**values, **values.get("text_config", {})})

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def int(self, names: str, default: Any = _MISSING) -> Any:
        """An integer; `names` may be several, separated by spaces."""
        return self._first(names, default, lambda v: isinstance(v, int) and not isinstance(v, bool), "an integer")

    def float(self, names: str, default: Any = _MISSING) -> Any:
        """A finite number."""
        value = self._first(names, default, is_number, "a finite number")
        return value if value is default else float(value)

    def bool(self, names: str, default: Any = _MISSING) -> Any:
        return self._first(names, default, lambda v: isinstance(v, bool), "true or false")

    def _first(self, names: str, default: Any, holds: Any, wanted: str) -> Any:
        for name in names.split():
            value = self.get(name)
            if value is not None:
                if not holds(value):
                    raise FileError(self.path, name, f"is {value!r}, but should be {wanted}", value=value)
                return value
        if default is _MISSING:
            raise FileError(
                self.path, names.split(maxsplit=1)[0], "is missing", hint="the config is incomplete; download it again"
            )
        return default

    @property
    def rope(self) -> Mapping[str, Any]:
        """Parameters of rotary positions: newer files keep them together, older ones beside other keys. Of full attention where layers differ."""
        found = self.get("rope_parameters") or {"rope_theta": self.get("rope_theta"), **self.get("rope_scaling", {})}
        return found.get("full_attention", found) if isinstance(found, Mapping) else {}


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_json(path: Path) -> dict[str, Any]:
    """An object of JSON; FileError where the file holds none."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(path, "file", f"cannot be read as JSON ({error})", hint="download it again") from error
    if not isinstance(values, dict):
        raise FileError(path, "file", "holds no JSON object", hint="download it again")
    return values


# Metadata key -> names in config.json, first found first taken; keys of models that lack it are left out.
COUNTS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size ffn_hidden_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads num_attention_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "expert_count": "num_experts num_local_experts n_routed_experts moe_num_experts",
    "expert_used_count": "num_experts_per_tok moe_topk moe_k top_k_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts moe_num_shared_experts num_shared_expert",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace num_dense_layers moe_layer_start_index",
}
NUMBERS = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps norm_eps",
    "expert_weights_scale": "routed_scaling_factor",
}
# Kinds of stretching that GGUF files carry as tensors.
FACTORS = ("llama3", "longrope", "proportional")
GATING = {"softmax": 1, "sigmoid": 2}


def shared_keys(config: Config) -> dict[str, Any]:
    """Metadata (without the architecture's prefix) that any architecture may have."""
    keys: dict[str, Any] = {key: config.int(names, None) for key, names in COUNTS.items()}
    keys |= {key: config.float(names, None) for key, names in NUMBERS.items()}
    keys["expert_weights_norm"] = config.bool("norm_topk_prob", None)
    keys["expert_gating_func"] = gating(config, None)
    head = config.int("head_dim", config.int("hidden_size") // config.int("num_attention_heads"))
    share = config.float("partial_rotary_factor", None) or config.rope.get("partial_rotary_factor") or 1.0
    keys["rope.dimension_count"] = int(head * share)
    return known(keys | rope_keys(config))


def known(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have a value."""
    return {key: value for key, value in keys.items() if value is not None}


def gating(config: Config, default: str | None) -> int | None:
    """GGUF's number of how router scores are made; FileError for a way that is not known, which would pick other experts."""
    name = config.get("scoring_func", default)
    if name is not None and name not in GATING:
        raise FileError(config.path, "scoring_func", f"is {name!r}, but known are {', '.join(GATING)}", value=name)
    return None if name is None else GATING[name]


def rope_keys(config: Config) -> dict[str, Any]:
    """How positions are stretched, as llama.cpp's metadata say it."""
    rope = config.rope
    keys: dict[str, Any] = {"rope.freq_base": float(rope.get("rope_theta") or 10000.0)}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", None, *FACTORS):
        original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
        return keys | (
            {"rope.scaling.original_context_length": int(original)} if kind == "longrope" and original else {}
        )
    if kind not in ("linear", "yarn"):
        raise FileError(
            config.path,
            "rope_scaling",
            f"of type {kind!r} is not supported",
            value=kind,
            hint="convert the model with llama.cpp's converter",
        )
    factor: Any = rope.get("factor")
    if not is_number(factor) or factor <= 0:
        raise FileError(config.path, "rope_scaling.factor", f"is {factor!r}, but should be positive", value=factor)
    keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(factor)}
    if kind == "yarn":
        original = rope.get("original_max_position_embeddings") or config.int("max_position_embeddings")
        keys |= {"rope.scaling.original_context_length": int(original)}
        for name in ("beta_fast", "beta_slow"):
            if rope.get(name) is not None:
                keys[f"rope.scaling.yarn_{name}"] = float(rope[name])
        if rope.get("mscale_all_dim"):
            keys["rope.scaling.yarn_log_multiplier"] = 0.1 * float(rope["mscale_all_dim"])
        if rope.get("attention_factor") is not None:
            # A checkpoint gives the whole magnitude, GGUF files what multiplies the usual one.
            usual = 1.0 if rope.get("mscale_all_dim") or factor <= 1 else 0.1 * math.log(factor) + 1
            keys["rope.scaling.attn_factor"] = float(rope["attention_factor"]) / usual
    return keys


def rope_tensors(config: Config) -> dict[str, NDArray[np.float32]]:
    """Factors that divide the frequencies of rotary positions, by the name of their GGUF tensor; float32 [rotated / 2]."""
    rope = config.rope
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "longrope":
        return {
            f"rope_factors_{length}.weight": np.asarray(rope[f"{length}_factor"], np.float32)
            for length in ("long", "short")
        }
    if kind == "llama3":
        return {"rope_freqs.weight": llama3_factors(rope, config)}
    if kind == "proportional":
        # Only a first part of the pairs turns; the frequencies are those of the whole head.
        head = config.int("global_head_dim", None)
        head = head or max(entry.get("head_dim", 0) for entry in config.get("per_layer_config", {"": {}}).values())
        pairs = (head or config.int("head_dim")) // 2
        turning = int(pairs * rope.get("partial_rotary_factor", 1.0))
        return {"rope_freqs.weight": np.where(np.arange(pairs) < turning, 1, 1e30).astype(np.float32)}
    return {}


def llama3_factors(rope: Mapping[str, Any], config: Config) -> NDArray[np.float32]:
    """Llama 3.1's: long waves are stretched, short ones not, and between the two it goes over smoothly."""
    head = config.int("head_dim", config.int("hidden_size") // config.int("num_attention_heads"))
    theta, factor, original = (float(rope[k]) for k in ("rope_theta", "factor", "original_max_position_embeddings"))
    low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
    waves = 2 * np.pi * theta ** (np.arange(0, head, 2, dtype=np.float64) / head)
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    factors: NDArray[np.float32] = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors
