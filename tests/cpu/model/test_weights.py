"""A file's tensors against what the model expects: each one there, of its shape, of a known type, and none left over."""

from __future__ import annotations

import pytest

import hotset
from hotset.errors import FileError, UnsupportedError
from samples import TinyMoE

TINY = TinyMoE()
OPTIONAL = {"output.weight"}


def load(path):
    return hotset.load(path, device="cpu")


@pytest.mark.parametrize("name", sorted(set(TINY.shapes()) - OPTIONAL))
def test_a_missing_tensor_is_named(name, tmp_path):
    path = TINY.write(tmp_path / "tiny.gguf", leave_out={name})
    with pytest.raises(FileError, match=f"{name}: this tensor is missing"):
        load(path)


@pytest.mark.parametrize("name", sorted(TINY.shapes()))
def test_a_tensor_of_another_shape_is_named_with_both_shapes(name, tmp_path):
    shape = TINY.shapes()[name]
    wrong = (*shape[:-1], shape[-1] + 32)
    path = TINY.write(tmp_path / "tiny.gguf", shapes={name: wrong})
    with pytest.raises(FileError) as caught:
        load(path)
    assert f"{name}: its shape is {list(wrong)}, the metadata say {list(shape)}" in str(caught.value)


def test_a_matrix_of_the_right_size_but_another_order_is_refused(tmp_path):
    path = TINY.write(tmp_path / "tiny.gguf", shapes={"blk.0.attn_q.weight": (64, 128)})
    with pytest.raises(FileError, match=r"attn_q\.weight: its shape is \[64, 128\], the metadata say \[128, 64\]"):
        load(path)


def test_a_tensor_that_no_part_of_the_model_takes_is_named(tmp_path):
    path = TINY.write(
        tmp_path / "tiny.gguf", shapes={"blk.0.ffn_gate_inp_shexp.weight": (64,), "rope_freqs.weight": (16,)}
    )
    with pytest.raises(UnsupportedError, match=r"does not use: blk\.0\.ffn_gate_inp_shexp\.weight, rope_freqs\.weight"):
        load(path)


@pytest.mark.parametrize("name", ["blk.1.ffn_down_exps.weight", "token_embd.weight", "blk.0.attn_k.weight"])
def test_a_type_that_is_not_computed_with_is_named_with_its_tensor(name, tmp_path):
    path = TINY.write(tmp_path / "tiny.gguf", types={name: ("Q8_1", 40 * (TINY.shapes()[name][-1] // 32))})
    with pytest.raises(UnsupportedError, match=rf"{name} \(Q8_1\).*computes with .*Q4_K"):
        load(path)


def test_all_types_that_are_not_computed_with_are_named_at_once(tmp_path):
    first, second = "blk.0.attn_q.weight", "blk.1.ffn_up_exps.weight"
    path = TINY.write(tmp_path / "tiny.gguf", types={first: ("Q8_1", 80), second: ("Q2_0", 18)})
    with pytest.raises(UnsupportedError, match=rf"{first} \(Q8_1\), {second} \(Q2_0\)"):
        load(path)


def test_without_an_output_matrix_the_embedding_serves(tmp_path):
    tied = TinyMoE(tied=True)
    model = load(tied.write(tmp_path / "tied.gguf"))
    assert model.runner.model.weights.output is model.runner.model.weights.embedding
    assert model.logits([1, 2, 3]).shape == (3, 50)
