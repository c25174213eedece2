"""The config of a Qwen3-MoE file: good metadata, and every way in which it can be bad."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.errors import FileError, UnsupportedError
from hotset.gguf import Metadata
from hotset.model import ARCHITECTURES, model_config
from hotset.model.config import architecture
from hotset.model.keys import Keys
from hotset.model.rope import Rope
from samples import TinyMoE

REQUIRED = {
    "block_count", "context_length", "embedding_length", "attention.head_count", "attention.layer_norm_rms_epsilon", "expert_count",
    "expert_used_count", "expert_feed_forward_length", "vocab_size",
}  # fmt: skip
COUNTS = REQUIRED - {"attention.layer_norm_rms_epsilon"} | {
    "attention.head_count_kv", "attention.key_length", "rope.dimension_count"
}  # fmt: skip


def metadata(name: str = "qwen3moe", **changes) -> Metadata:
    values = {"general.architecture": name}
    for key, value in (TinyMoE().metadata() | changes).items():
        if value is not None:
            values[f"qwen3moe.{key}"] = value
    return Metadata(Path("tiny.gguf"), values)


def test_good_metadata_become_a_config():
    config = model_config(metadata(**{"rope.freq_base": 5e5, "rope.dimension_count": 16}))
    assert (config.n_layers, config.d_model, config.d_expert, config.n_vocab, config.n_ctx_train) == (
        2,
        64,
        32,
        50,
        512,
    )
    assert (config.n_heads, config.n_kv_heads, config.d_head) == (4, 2, 32)
    assert config.rope == Rope(theta=5e5, n_rotated=16)
    assert (config.n_experts, config.n_picks, config.router.scoring) == (8, 2, "softmax")
    assert config.router.renormalise
    assert config.name == "tiny"


def test_what_a_file_may_leave_out_has_the_defaults_of_llama_cpp():
    config = model_config(metadata(**{"attention.head_count_kv": None, "attention.key_length": None}))
    assert (config.n_kv_heads, config.d_head) == (4, 16)
    assert config.rope == Rope(theta=10000.0, n_rotated=16)


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({}, 1),
        ({"scaling.type": "none", "scaling.factor": 4.0}, 1),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4),
        ({"scaling.factor": 4.0}, 4),
        ({"scale_linear": 4.0}, 4),
        ({"scale_linear": 2.0, "scaling.factor": 4.0}, 4),
        ({"scaling.type": "linear"}, 1),
        ({"scaling.type": "linear", "scaling.factor": 0.0}, 1),
    ],
    ids=str,
)
def test_positions_are_divided_by_the_factor_unless_the_file_says_none(keys, factor):
    rope = model_config(metadata(**{f"rope.{key}": value for key, value in keys.items()})).rope
    assert (rope.factor, rope.magnitude, rope.yarn) == (factor, 1, None)


@pytest.mark.parametrize(
    ("name", "keys", "renormalise", "scale"),
    [
        ("qwen3moe", {}, True, 1),
        ("olmoe", {}, False, 1),
        ("qwen3moe", {"expert_weights_norm": False}, False, 1),
        ("olmoe", {"expert_weights_norm": True}, True, 1),
        ("qwen3moe", {"expert_weights_scale": 0.0}, True, 1),
        ("qwen3moe", {"expert_weights_scale": 2.5}, True, 2.5),
        ("olmoe", {"expert_weights_scale": 2.5}, False, 2.5),
    ],
)
def test_the_files_word_on_pick_weights_stands_above_the_architectures(name, keys, renormalise, scale):
    values = {
        f"{name}.{key}": value for key, value in (TinyMoE().metadata() | {"feed_forward_length": 32} | keys).items()
    }
    router = model_config(Metadata(Path("tiny.gguf"), {"general.architecture": name, **values})).router
    assert (router.renormalise, router.scale) == (renormalise, scale)


@pytest.mark.parametrize(
    ("keys", "magnitude"),
    [
        ({"factor": 4.0}, 1.1386),
        ({"factor": 40.0}, 1.3689),
        ({"factor": 40.0, "attn_factor": 0.5}, 1.3689 / 2),
        ({"factor": 40.0, "yarn_log_multiplier": 0.0}, 1.3689),
        ({"factor": 40.0, "yarn_log_multiplier": 0.1}, 1),
        ({"factor": 1.0}, 1),
        ({"factor": 0.0}, 1),
        ({}, 1),
    ],
    ids=str,
)
def test_yarn_makes_scores_larger_once(keys, magnitude):
    scaling = {f"rope.scaling.{key}": value for key, value in ({"type": "yarn"} | keys).items()}
    rope = model_config(metadata(**scaling)).rope
    assert rope.magnitude == pytest.approx(magnitude, abs=5e-5)
    assert rope.yarn.n_ctx_original == 512


@pytest.mark.parametrize(
    ("kind", "multiplier", "factor"),
    [("yarn", 0.1, 1.8739), ("yarn", 0.0707, 1.5896), ("yarn", 0.0, 1), ("linear", 0.1, 1)],
)
def test_scores_of_latents_are_larger_by_what_the_file_has_for_all_dimensions(kind, multiplier, factor):
    scaling = {"type": kind, "factor": 40.0, "yarn_log_multiplier": multiplier}
    keys = Keys(metadata(**{f"rope.scaling.{key}": value for key, value in scaling.items()}))
    assert keys.latent_score_factor() == pytest.approx(factor, abs=5e-5)


@pytest.mark.parametrize("key", sorted(REQUIRED))
def test_a_missing_key_is_named(key):
    with pytest.raises(FileError, match=rf"tiny\.gguf: qwen3moe\.{key}: is missing"):
        model_config(metadata(**{key: None}))


@pytest.mark.parametrize("value", [0, -1, 2**31, 2**63, "four", 1.5], ids=repr)
@pytest.mark.parametrize("key", sorted(COUNTS))
def test_an_absurd_count_is_refused_with_its_key_and_value(key, value):
    with pytest.raises(FileError, match=key) as caught:
        model_config(metadata(**{key: value}))
    assert caught.value.value == value


@pytest.mark.parametrize(
    ("changes", "thing"),
    [
        ({"attention.head_count_kv": 3}, "attention.head_count_kv"),
        ({"expert_used_count": 9}, "expert_used_count"),
        ({"rope.dimension_count": 34}, "rope.dimension_count"),
        ({"rope.dimension_count": 15}, "rope.dimension_count"),
        ({"rope.freq_base": 0.0}, "rope.freq_base"),
        ({"rope.freq_base": -1.0}, "rope.freq_base"),
        ({"rope.freq_base": float("nan")}, "rope.freq_base"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": -4.0}, "rope.scaling.factor"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": [4.0, 8.0]}, "rope.scaling.factor"),
        ({"nextn_predict_layers": 2}, "nextn_predict_layers"),
        ({"expert_group_count": 8, "expert_group_used_count": 1}, "expert_group_used_count"),
        ({"expert_group_count": 2, "expert_group_used_count": 3}, "expert_group_used_count"),
        ({"expert_group_count": 3}, "expert_group_used_count"),
        ({"attention.layer_norm_rms_epsilon": float("inf")}, "attention.layer_norm_rms_epsilon"),
        ({"attention.layer_norm_rms_epsilon": -1.0}, "attention.layer_norm_rms_epsilon"),
        ({"expert_weights_scale": float("nan")}, "expert_weights_scale"),
        ({"expert_weights_norm": "yes"}, "expert_weights_norm"),
        (
            {"attention.head_count": 100, "attention.head_count_kv": 100, "attention.key_length": None},
            "attention.key_length",
        ),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(changes, thing):
    with pytest.raises(FileError, match=thing):
        model_config(metadata(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope.scaling.type": "su"}, "'su' is not supported; this version knows none, linear, yarn, longrope"),
        ({"expert_gating_func": 7}, "expert_gating_func: 7 is not supported; this version knows 1 .softmax., 2"),
    ],
)
def test_sound_settings_that_this_version_does_not_know_are_unsupported(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        model_config(metadata(**changes))


def test_a_count_may_stand_once_for_each_block():
    numbers = {
        key: np.array([value] * 2, np.int32)
        for key, value in {"expert_used_count": 2, "attention.head_count_kv": 1}.items()
    }
    config = model_config(metadata(**numbers))
    assert (config.n_picks, config.n_kv_heads) == (2, 1)
    for values, told in (
        ([2, 3], "differs from layer to layer .2 to 3."),
        ([2] * 3, "an array of 2;"),
        ([], "an array of 2;"),
        ([0, 0], "is 0"),
    ):
        with pytest.raises(FileError, match=rf"expert_used_count: .*{told}"):
            model_config(metadata(expert_used_count=np.array(values, np.int32)))
    with pytest.raises(FileError, match=r"block_count: .*an integer"):
        model_config(metadata(block_count=np.array([2, 2], np.int32)))


def test_an_unknown_architecture_names_those_that_are_known():
    with pytest.raises(
        UnsupportedError, match=r"general\.architecture: 'mamba7' is not supported; this version runs .*qwen3moe"
    ):
        model_config(metadata("mamba7"))


def test_an_architecture_registers_once():
    with pytest.raises(ValueError, match="qwen3moe is registered twice"):
        architecture("qwen3moe", "twice")(ARCHITECTURES["qwen3moe"].read)
