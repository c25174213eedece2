"""What each family of checkpoints calls its tensors, and which keys of its config it has to itself.

Names on the right are GGUF's, as llama.cpp's converter writes them. Weight and bias of a thing go by one entry; an entry with
".weight" or another ending stands for that tensor alone. `experts.E` stands for every expert, which are stacked in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotset.checkpoint.config import GATING, gating, known
from hotset.checkpoint.values import (
    Change,
    decay_rate,
    delta_part,
    every_other,
    flat,
    half,
    key_part,
    one_added,
    pairs_together,
    same,
    squeezed,
    turned,
    value_part,
)

if TYPE_CHECKING:
    from hotset.checkpoint.config import Config

# One stored tensor may become several.
Outputs = tuple[tuple[str, Change], ...]
Names = Mapping[str, "str | Outputs"]
Keys = Callable[["Config"], dict[str, Any]]

ATTENTION: Names = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
DENSE: Names = {
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
EXPERTS: Names = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.E.gate_proj": "ffn_gate_exps",
    "mlp.experts.E.up_proj": "ffn_up_exps",
    "mlp.experts.E.down_proj": "ffn_down_exps",
    "mlp.experts.gate_up_proj": (("ffn_gate_exps.weight", half(0)), ("ffn_up_exps.weight", half(1))),
    "mlp.experts.down_proj": (("ffn_down_exps.weight", same),),
}


def shared_experts(name: str) -> Names:
    return {f"mlp.{name}.{role}_proj": f"ffn_{role}_shexp" for role in ("gate", "up", "down")}


COMMON = {**ATTENTION, **DENSE, **EXPERTS}
ENDS: Names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
PERMUTED: Names = {
    f"self_attn.{x}_proj.{kind}": ((f"attn_{x}.{kind}", pairs_together(heads)),)
    for x, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
    for kind in ("weight", "bias")
}
MIXTRAL: Names = {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.E.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.E.w3": "ffn_up_exps",
    "block_sparse_moe.experts.E.w2": "ffn_down_exps",
}
LATENT: Names = {
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj.weight": (("attn_k_b.weight", key_part), ("attn_v_b.weight", value_part)),
}
SINKS: Names = {
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.sinks": (("attn_sinks.weight", same),),
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_up_proj": (
        ("ffn_gate_exps.weight", turned(every_other(0))),
        ("ffn_up_exps.weight", turned(every_other(1))),
    ),
    "mlp.experts.down_proj": (("ffn_down_exps.weight", turned(same)),),
    # Packed ones are stored [experts, rows, blocks of cols] already.
    "mlp.experts.gate_up_proj_blocks": (
        ("ffn_gate_exps.weight", every_other(0)),
        ("ffn_up_exps.weight", every_other(1)),
    ),
    "mlp.experts.down_proj_blocks": (("ffn_down_exps.weight", same),),
    "mlp.experts.gate_up_proj_bias": (("ffn_gate_exps.bias", every_other(0)), ("ffn_up_exps.bias", every_other(1))),
    "mlp.experts.down_proj_bias": (("ffn_down_exps.bias", same),),
}
GRANITE: Names = {
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.input_linear.weight": (("ffn_gate_exps.weight", half(0)), ("ffn_up_exps.weight", half(1))),
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.input_linear.weight": (("ffn_gate_shexp.weight", half(0)), ("ffn_up_shexp.weight", half(1))),
    "shared_mlp.output_linear": "ffn_down_shexp",
}
DELTA: Names = {
    "input_layernorm": (("attn_norm.weight", one_added),),
    "post_attention_layernorm": (("post_attention_norm.weight", one_added),),
    "self_attn.q_norm": (("attn_q_norm.weight", one_added),),
    "self_attn.k_norm": (("attn_k_norm.weight", one_added),),
    "linear_attn.A_log": (("ssm_a", decay_rate),),
    "linear_attn.dt_bias": (("ssm_dt.bias", same),),
    "linear_attn.conv1d.weight": (("ssm_conv1d.weight", squeezed),),
    "linear_attn.norm": "ssm_norm",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkvz.weight": (("attn_qkv.weight", delta_part("qkv")), ("attn_gate.weight", delta_part("z"))),
    "linear_attn.out_proj": "ssm_out",
    "mlp.shared_expert_gate.weight": (("ffn_gate_inp_shexp.weight", flat),),
}
CONVOLUTION: Names = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "conv.conv.weight": (("shortconv.conv.weight", squeezed),),
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.expert_bias": (("exp_probs_b.bias", same),),
    "feed_forward.experts.E.w1": "ffn_gate_exps",
    "feed_forward.experts.E.w3": "ffn_up_exps",
    "feed_forward.experts.E.w2": "ffn_down_exps",
}
GEMMA: Names = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
    "router.scale": (("ffn_gate_inp.scale", same),),
    "router.per_expert_scale": (("ffn_down_exps.scale", same),),
    "experts.gate_up_proj": (("ffn_gate_exps.weight", half(0)), ("ffn_up_exps.weight", half(1))),
    "experts.down_proj": (("ffn_down_exps.weight", same),),
    "layer_scalar": (("layer_output_scale.weight", same),),
}


@dataclass(frozen=True)
class Family:
    """A GGUF architecture, the names of a layer's tensors beside the common ones, those of the ends, and the keys of its own."""

    architecture: str
    names: Names = field(default_factory=dict)
    keys: Keys = lambda _config: {}
    ends: Names = field(default_factory=dict)


def expert_width(config: Config) -> dict[str, Any]:
    return {"expert_feed_forward_length": config.int("intermediate_size")}


def latent_keys(config: Config) -> dict[str, Any]:
    """Of attention over a latent, with its matrices absorbed: one key head, as wide as the latent and the rotated part."""
    lora, rotated = config.int("kv_lora_rank"), config.int("qk_rope_head_dim")
    keys = {
        "attention.q_lora_rank": config.int("q_lora_rank", None),
        "attention.kv_lora_rank": lora,
        "attention.head_count_kv": 1,
        "attention.key_length": lora + rotated,
        "attention.value_length": lora,
        "attention.key_length_mla": config.int("qk_nope_head_dim") + rotated,
        "attention.value_length_mla": config.int("v_head_dim"),
        "rope.dimension_count": rotated,
    }
    usual = "sigmoid" if config.get("model_type") == "deepseek_v3" else "softmax"
    return known(keys) | {"expert_gating_func": gating(config, usual)}


def window_keys(config: Config) -> dict[str, Any]:
    return expert_width(config) | {"attention.sliding_window": config.int("sliding_window")}


def granite_keys(config: Config) -> dict[str, Any]:
    keys = {
        "logit_scale": config.float("logits_scaling", None),
        "residual_scale": config.float("residual_multiplier", None),
        "embedding_scale": config.float("embedding_multiplier", None),
        "attention.scale": config.float("attention_multiplier", None),
        "expert_shared_feed_forward_length": config.int("shared_intermediate_size", None),
    }
    return known(keys)


def glm_keys(config: Config) -> dict[str, Any]:
    return {"expert_gating_func": GATING["sigmoid"], "expert_shared_count": config.int("n_shared_experts", 1)}


def delta_keys(config: Config) -> dict[str, Any]:
    value, heads = config.int("linear_value_head_dim"), config.int("linear_num_value_heads")
    return {
        "ssm.conv_kernel": config.int("linear_conv_kernel_dim"),
        "ssm.state_size": config.int("linear_key_head_dim"),
        "ssm.group_count": config.int("linear_num_key_heads"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": value * heads,
        "full_attention_interval": config.int("full_attention_interval", 4),
    }


def convolution_keys(config: Config) -> dict[str, Any]:
    kinds, heads = config.get("layer_types", []), config.int("num_key_value_heads")
    return {
        "expert_gating_func": GATING["sigmoid"],
        "shortconv.l_cache": config.int("conv_L_cache"),
        "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in kinds],
    }


def ernie_keys(config: Config) -> dict[str, Any]:
    width, n_shared = config.int("moe_intermediate_size"), config.int("moe_num_shared_experts", 0)
    keys = {"interleave_moe_layer_step": config.int("moe_layer_interval", 1)}
    return keys | ({"expert_shared_feed_forward_length": width * n_shared} if n_shared else {})


def gemma_keys(config: Config) -> dict[str, Any]:
    """Layers with a window have heads of their own size, and rotary positions of their own."""
    kinds = config.get("layer_types", [])
    windowed = [kind == "sliding_attention" for kind in kinds]
    other: dict[str, Any] = next(iter(config.get("per_layer_config", {}).values()), {})
    head, heads = config.int("head_dim"), config.int("num_key_value_heads")
    wide = config.int("global_head_dim", other.get("head_dim", head))
    few = config.int("num_global_key_value_heads", other.get("num_key_value_heads", heads))
    local = config.get("rope_parameters", {}).get("sliding_attention", {})
    keys = {
        "attention.head_count_kv": [heads if window else few for window in windowed],
        "attention.sliding_window": config.int("sliding_window"),
        "attention.sliding_window_pattern": windowed,
        "attention.key_length": wide,
        "attention.value_length": wide,
        "attention.key_length_swa": head,
        "attention.value_length_swa": head,
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": head,
        "rope.freq_base_swa": float(local.get("rope_theta", 10000.0)),
        "final_logit_softcapping": config.float("final_logit_softcapping", None),
        "embedding_length_per_layer_input": config.int("hidden_size_per_layer_input", 0),
    }
    return known(keys)


NEXT_ENDS: Names = {"norm": (("output_norm.weight", one_added),)}

# By config.json's `model_type`.
FAMILIES: dict[str, Family] = {
    "llama": Family("llama", PERMUTED),
    "mistral": Family("llama", PERMUTED),
    "mixtral": Family("llama", {**PERMUTED, **MIXTRAL}),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen2_moe": Family(
        "qwen2moe",
        {**shared_experts("shared_expert"), "mlp.shared_expert_gate.weight": (("ffn_gate_inp_shexp.weight", flat),)},
    ),
    "qwen3_moe": Family("qwen3moe"),
    "olmoe": Family("olmoe", keys=expert_width),
    "deepseek_v2": Family("deepseek2", {**LATENT, **shared_experts("shared_experts")}, latent_keys),
    "deepseek_v3": Family("deepseek2", {**LATENT, **shared_experts("shared_experts")}, latent_keys),
    "gpt_oss": Family("gpt-oss", SINKS, window_keys),
    "glm4_moe": Family(
        "glm4moe", {**shared_experts("shared_experts"), "post_attention_layernorm": "post_attention_norm"}, glm_keys
    ),
    "granitemoe": Family("granitemoe", {**PERMUTED, **GRANITE}, granite_keys),
    "granitemoeshared": Family("granitemoe", {**PERMUTED, **GRANITE}, granite_keys),
    "phimoe": Family("phimoe", MIXTRAL),
    "gemma4": Family("gemma4", GEMMA, gemma_keys),
    "gemma4_text": Family("gemma4", GEMMA, gemma_keys),
    "qwen3_next": Family("qwen3next", {**shared_experts("shared_expert"), **DELTA}, delta_keys, NEXT_ENDS),
    "ernie4_5_moe": Family(
        "ernie4_5-moe",
        {
            **shared_experts("shared_experts"),
            "mlp.moe_statics.e_score_correction_bias": (("exp_probs_b.bias", flat),),
        },
        ernie_keys,
    ),
    "lfm2_moe": Family("lfm2moe", CONVOLUTION, convolution_keys, {"embedding_norm": "token_embd_norm"}),
    "hunyuan_v1_moe": Family(
        "hunyuan-moe",
        {
            **shared_experts("shared_mlp"),
            "mlp.gate.wg": "ffn_gate_inp",
            "self_attn.query_layernorm": "attn_q_norm",
            "self_attn.key_layernorm": "attn_k_norm",
        },
        lambda config: {
            "expert_feed_forward_length": config.int("moe_intermediate_size intermediate_size"),
            "expert_shared_feed_forward_length": config.int("intermediate_size"),
        },
    ),
}
