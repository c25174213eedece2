"""`hotset convert`: what is written loads and says the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hotset
from hotset.cli import main
from hotset.gguf import open_gguf
from reference import relative_rms
from samples import TinyMoE

MODEL = TinyMoE(d_model=256, d_expert=64, d_head=32, n_vocab=40)


@pytest.fixture
def model(tmp_path):
    return MODEL.write(tmp_path / "model.gguf")


def test_without_formats_the_file_is_the_same(model, tmp_path):
    assert main(["convert", str(model), "-o", str(tmp_path / "out.gguf")]) == 0
    with open_gguf(model) as before, open_gguf(tmp_path / "out.gguf") as after:
        assert dict(after.metadata.items()).keys() == dict(before.metadata.items()).keys()
        assert list(after.tensors) == list(before.tensors)
        assert all(np.array_equal(after.data(n), before.data(n)) for n in before.tensors)


def test_formats_are_those_asked_for_and_logits_stay_close(model, tmp_path, capsys):
    out = tmp_path / "out.gguf"
    assert main(["convert", str(model), "-o", str(out), "--experts", "q4_k", "--rest", "Q8_0", "--json"]) == 0
    said = capsys.readouterr()
    with open_gguf(out) as file:
        kinds = {name: tensor.ggml_type.name for name, tensor in file.tensors.items()}
    assert kinds["blk.0.ffn_gate_exps.weight"] == "Q4_K"
    assert kinds["blk.0.ffn_down_exps.weight"] == "Q8_0"  # 64 columns
    assert "no whole number of Q4_K's blocks; they are Q8_0" in said.err
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_gate_inp.weight"] == kinds["blk.0.attn_norm.weight"] == "F32"
    assert json.loads(said.out.splitlines()[-1])["bytes"] == out.stat().st_size
    tokens = list(range(12))
    exact, found = (hotset.load(path, device="cpu").logits(tokens, mode="reference") for path in (model, out))
    assert relative_rms(found, exact) < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--experts", "Q9"], "--experts 'Q9' cannot be written"),
        (["--rest", "IQ2_XXS"], "--rest 'IQ2_XXS' cannot be written"),
    ],
)
def test_other_formats_are_told(model, tmp_path, capsys, options, message):
    assert main(["convert", str(model), "-o", str(tmp_path / "out.gguf"), *options]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


def test_a_file_that_is_there_is_kept(model, capsys):
    before = model.read_bytes()
    assert main(["convert", str(model), "-o", str(model)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert model.read_bytes() == before


def test_a_checkpoint_becomes_the_file_that_it_shows(shared, tmp_path):
    out = tmp_path / "demo.gguf"
    assert main(["convert", str(shared / "models" / "demo-moe-hf"), "-o", str(out)]) == 0
    tokens = [5, 300, 77, 1000]
    folder, file = (
        hotset.load(path, device="cpu").logits(tokens, mode="reference")
        for path in (shared / "models" / "demo-moe-hf", out)
    )
    assert np.array_equal(folder, file)
