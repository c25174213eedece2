"""Tiny random models of transformers, written as checkpoints and read back: their logits and picks are the other oracle."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import hotset
from reference import relative_rms

transformers = pytest.importorskip("transformers", reason="TRANSFORMERS ABSENT: its models were not compared")

LIMIT, GELU_LIMIT = 1e-4, 1e-3
TOKENS = np.random.default_rng(1).integers(0, 130, 40)
SIZES = {
    "vocab_size": 130, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "initializer_range": 0.125, "intermediate_size": 80, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 24,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
EIGHT = {"num_experts": 8, "num_experts_per_tok": 4}
MODELS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"moe_intermediate_size": 32, "head_dim": 32, "norm_topk_prob": True, **EIGHT},
    "qwen2_moe": {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, **EIGHT},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": EIGHT,
    "deepseek_v2": {**LATENT, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": {
        **LATENT, "n_routed_experts": 12, "num_experts_per_tok": 4, "n_shared_experts": 1, "q_lora_rank": 40, "n_group": 4, "topk_group": 2,
    },
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 4, "head_dim": 32, "sliding_window": 24, "rope_parameters": YARN},
    "glm4_moe": {
        "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1, "head_dim": 32, "first_k_dense_replace": 1,
        "use_qk_norm": True, "attention_bias": True, "n_group": 1, "topk_group": 1,
    },
    "granitemoe": {
        "num_local_experts": 8, "num_experts_per_tok": 3, "embedding_multiplier": 0.4, "residual_multiplier": 0.22, "logits_scaling": 1.5,
        "attention_multiplier": 0.0625,
    },
    "granitemoeshared": {"num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 48},
    "qwen3_next": {
        "num_hidden_layers": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "head_dim": 32, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, **EIGHT,
    },
    "ernie4_5_moe": {"moe_intermediate_size": 32, "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 1, "moe_layer_start_index": 1},
    "lfm2_moe": {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "num_dense_layers": 1,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 3, "num_shared_expert": 1, "head_dim": 32, "intermediate_size": 32},
    "gemma4_text": {
        "head_dim": 16, "global_head_dim": 32, "num_global_key_value_heads": 1, "enable_moe_block": True, "moe_intermediate_size": 32,
        "num_experts": 8, "top_k_experts": 3, "sliding_window": 24, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": True, "final_logit_softcapping": 30.0,
    },
}  # fmt: skip


def made(kind: str):
    """A model whose norms, biases and selection biases matter too: as drawn they are ones and zeros."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **(SIZES | MODELS[kind]))
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:
                value.add_(0.1 * torch.randn_like(value))
        for name, value in model.named_buffers():
            if "bias" in name:
                value.add_(0.1 * torch.randn_like(value))
    return model


def expected(model):
    """Logits [n, vocab] and the experts picked [layers with experts, n, k]."""
    picks = []
    for name, module in model.named_modules():
        if name.endswith((".gate", ".router")):
            module.register_forward_hook(lambda _module, _inputs, out: picks.append(out[-1].reshape(len(TOKENS), -1)))
    with torch.no_grad():
        logits = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    return logits, [p.numpy() for p in picks]


@pytest.mark.parametrize("kind", MODELS)
def test_logits_and_picks_are_those_of_transformers(kind, tmp_path, picks_of):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = made(kind)
        logits, picks = expected(model)
        model.save_pretrained(tmp_path)
    engine = hotset.load(tmp_path, device="cpu", record_steps=8)
    found = engine.logits(TOKENS.tolist(), mode="reference")
    assert relative_rms(found, logits) <= (GELU_LIMIT if "gemma" in kind else LIMIT)
    if picks:
        assert np.array_equal(np.sort(picks_of(engine), -1), np.sort(picks, -1))
