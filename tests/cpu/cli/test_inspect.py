from __future__ import annotations

import json

import numpy as np
import pytest

from hotset.cli.inspect import vram_text
from hotset.cli.inspection import VramRow, formats_text, ranges
from hotset.gguf import GGUFWriter


@pytest.fixture
def other_architecture(tmp_path):
    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "sphinx")
    writer.metadata("general.name", "a riddle\x1b[31m")
    writer.metadata("sphinx.block_count", 3, "u32")
    writer.tensor("blk.0.attn_q.weight", np.ones((4, 8), np.float32))
    writer.tensor("blk.0.ffn_gate_exps.weight", bytes(2 * 4 * 34), "Q8_0", (2, 4, 32))
    writer.write()
    return path


def test_the_demo_shows_what_it_is_on_stdout(call):
    result = call("inspect", "demo")
    assert (result.code, result.err) == (0, "")
    for text in (
        "qwen3moe",
        "32 per layer, 4 picked",
        "Q5_0, Q8_0 in layers 2, 5",
        "24 GiB of VRAM  all experts resident",
        "assumed:",
    ):
        assert text in result.out


def test_json_has_the_sizes_of_everything(call):
    value = json.loads(call("inspect", "demo", "--json").out)
    model = value["model"]
    assert value["supported"] is True
    assert (model["n_layers"], model["n_experts"], model["n_picks"]) == (6, 32, 4)
    assert model["kv_bytes_per_token"] == 2 * 6 * 2 * 64 * 2
    assert model["expert_bytes"] == 32 * sum(model["span_bytes"])
    assert model["active_bytes_per_token"] == model["dense_bytes"] + 4 * sum(model["span_bytes"])
    assert (
        value["formats"]["output"] if "output" in value["formats"] else value["formats"]["embedding"] == {"Q6_K": [-1]}
    )
    assert [row["gib"] for row in model["vram"]] == [6, 8, 12, 16, 24]


def test_dense_and_expert_bytes_make_up_the_file(call):
    value = json.loads(call("inspect", "demo", "--json").out)
    experts = value["tensor_bytes"] - value["model"]["dense_bytes"]
    assert experts <= value["model"]["expert_bytes"] <= 1.04 * experts


def test_metadata_is_shown_on_request(call):
    assert "tokenizer.ggml.pre" not in call("inspect", "demo").out
    shown = call("inspect", "demo", "--metadata").out
    assert "str 'qwen2'" in shown
    assert "str[] an array of 4,096 strings" in shown


def test_an_unknown_architecture_still_shows_its_header(call, other_architecture):
    result = call("inspect", other_architecture)
    assert result.code == 0
    assert "hotset cannot run this file" in result.out
    assert "'sphinx' is not supported" in result.out
    assert "sphinx.block_count  3" in result.out
    assert "experts gate  Q8_0" in result.out
    value = json.loads(call("inspect", other_architecture, "--json").out)
    assert (value["supported"], value["model"]) == (False, None)


def test_control_characters_in_a_file_do_not_reach_the_terminal(call, other_architecture):
    shown = call("inspect", other_architecture).out
    assert "\x1b" not in shown
    assert "a riddle\\x1b[31m" in shown


def test_any_part_of_a_split_file_will_do(call, tmp_path):
    writer = GGUFWriter(tmp_path / "model.gguf", "sphinx", split=2)
    for i in range(4):
        writer.tensor(f"blk.{i}.attn_q.weight", np.ones((4, 8), np.float32))
    _, second = writer.write()
    value = json.loads(call("inspect", second, "--json").out)
    assert len(value["parts"]) == 2
    assert value["n_tensors"] == 4


def test_a_damaged_file_is_an_error(call, tmp_path):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    result = call("inspect", path)
    assert (result.code, result.out) == (1, "")
    assert str(path) in result.err


@pytest.mark.parametrize(
    ("numbers", "text"), [([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0, 2-3, 7"), ([1, 3], "1, 3")]
)
def test_layers_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_the_most_used_format_comes_first():
    assert formats_text({"Q4_K": [1, 2, 3], "Q6_K": [0, 4]}) == "Q4_K, Q6_K in layers 0, 4"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (VramRow(6, None, 0.0), "too small, even without a single expert cached"),
        (VramRow(6, (32, 32), 0.25), "32 of 128 experts per layer (25.0 %)"),
        (VramRow(6, (32, 33), 0.252), "32 to 33 of 128 experts per layer (25.2 %)"),
        (VramRow(6, (128, 128), 1.0), "all experts resident"),
    ],
)
def test_what_fits_is_said_in_words(row, text):
    assert vram_text(row, 128) == text


def test_all_architectures_are_listed_without_a_file(call):
    result = call("inspect", "--all-archs")
    assert result.code == 0
    assert "deepseek2" in result.out
    listed = json.loads(call("inspect", "--all-archs", "--json").out)
    assert listed["qwen3moe"]["runs_on"] == ["CPU", "GPU"]
    assert all(entry["models"] for entry in listed.values())
