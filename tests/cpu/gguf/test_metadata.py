"""The getters of metadata: any width, scalar or array, and an error that names file, key and value."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.errors import FileError
from hotset.gguf import GGUFWriter, Metadata, open_gguf
from hotset.gguf.strings import decode


def meta(**values) -> Metadata:
    return Metadata(Path("m.gguf"), {"general.architecture": "toy"} | {f"toy.{k}": v for k, v in values.items()}).arch


def test_values_come_back_as_they_were_written(toy_path):
    with open_gguf(toy_path) as model:
        metadata = model.metadata
    arch = metadata.arch
    assert metadata.architecture == "toymoe"
    assert (arch.int("block_count"), arch.int("shift"), arch.int("big")) == (2, -3, 1 << 40)
    assert (arch.float("rope.freq_base"), arch.float("precise"), arch.float("block_count")) == (1e4, 0.1, 2.0)
    assert arch.ints("feed_forward_length", 2) == [64, 96]
    assert arch.bools("pattern", 2) == [True, False]
    assert metadata.bool("tokenizer.ggml.add_bos_token") is True
    assert metadata.floats("tokenizer.ggml.scores", 4) == [0.5, -1.0, 0.0, 2.0]
    types = [metadata.type_of(key) for key in metadata]
    assert types == ["str", "u32", "f32", "u32[]", "i32", "u64", "f64", "str[]", "f32[]", "bool", "bool[]"]


def test_a_scope_is_a_mapping_of_its_own(toy_path):
    with open_gguf(toy_path) as model:
        arch = model.metadata.arch
    assert list(arch) == ["block_count", "rope.freq_base", "feed_forward_length", "shift", "big", "precise", "pattern"]
    assert len(arch) == 7
    assert arch["block_count"] == 2
    assert "general.architecture" not in arch
    assert arch.scoped("rope.").float("freq_base") == 1e4
    assert arch.type_of("precise") == "f64"


def test_bytes_of_tokens_that_are_no_utf8_are_kept(toy_path):
    with open_gguf(toy_path) as model:
        tokens = model.metadata.strings("tokenizer.ggml.tokens")
    assert [token.encode("utf-8", "surrogateescape") for token in tokens] == [b"a", b"\xc3", "ü".encode(), b""]
    assert [tokens.raw(i) for i in range(4)] == [b"a", b"\xc3", "ü".encode(), b""]
    assert (tokens[-2], tokens[1:3], len(tokens), "a" in tokens) == ("ü", ["\udcc3", "ü"], 4, True)
    with pytest.raises(IndexError):
        tokens[4]
    with pytest.raises(IndexError):
        tokens[-5]


@given(st.binary())
def test_decoding_loses_no_byte(raw):
    assert decode(raw).encode("utf-8", "surrogateescape") == raw


def test_text_that_is_no_utf8_can_be_printed(tmp_path):
    writer = GGUFWriter(tmp_path / "m.gguf", "toy")
    writer.metadata("general.name", b"\xff\xfe model")
    (path,) = writer.write()
    with open_gguf(path) as model:
        assert model.metadata.str("general.name") == "\ufffd\ufffd model"
        assert model.metadata.bytes("general.name") == b"\xff\xfe model"


@pytest.mark.parametrize("type_id", [0, 1, 2, 3, 4, 5, 10, 11])
def test_counts_may_be_scalar_or_array_of_any_width(forge, type_id):
    code = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}[type_id]
    pairs = (
        forge.text("general.architecture", "toy"),
        forge.pair("toy.scalar", type_id, struct.pack("<" + code, 8)),
        forge.array("toy.array", type_id, 3, struct.pack("<3" + code, 8, 4, 0)),
    )
    with open_gguf(forge.file(pairs)) as model:
        arch = model.metadata.arch
        assert arch.ints("scalar", 3) == [8, 8, 8]
        assert arch.ints("array", 3) == arch.ints("array") == [8, 4, 0]
        assert all(type(number) is int for number in arch.ints("array", 3))


@pytest.mark.parametrize(
    "value",
    [np.array([1, 2], np.uint32), np.array([], np.uint32), np.array([1.0, 2.0, 3.0]), "text", 1.5],
    ids=["too short", "empty", "floats", "text", "float"],
)
def test_an_array_of_the_wrong_length_or_kind_is_an_error(value):
    with pytest.raises(
        FileError, match=r"m\.gguf: toy\.head_count_kv: is .* but should be integers: one, or an array of 3"
    ):
        meta(head_count_kv=value).ints("head_count_kv", 3)


def test_an_empty_array_is_no_list_of_numbers():
    with pytest.raises(FileError, match="at least one"):
        meta(x=np.array([], np.int32)).ints("x")


@pytest.mark.parametrize(
    ("getter", "value"),
    [
        ("int", 1.0),
        ("int", "1"),
        ("int", np.array([1])),
        ("float", True),
        ("float", float("nan")),
        ("float", float("inf")),
        ("bool", 2),
        ("bool", 1.0),
        ("str", 1),
        ("bytes", 1),
        ("strings", "text"),
        ("strings", np.array([1])),
        ("floats", float("nan")),
        ("bools", np.array([0, 2])),
    ],
)
def test_a_value_of_another_kind_is_an_error_that_names_it(getter, value):
    with pytest.raises(FileError, match=r"m\.gguf: toy\.x: is ") as caught:
        getattr(meta(x=value), getter)("x")
    assert (caught.value.thing, caught.value.path) == ("toy.x", "m.gguf")
    assert caught.value.value is value


def test_a_missing_key_is_an_error_or_the_default():
    arch = meta()
    for getter in ("int", "float", "bool", "str", "bytes", "strings", "ints", "floats", "bools"):
        with pytest.raises(FileError, match=r"m\.gguf: toy\.x: is missing"):
            getattr(arch, getter)("x")
    assert (arch.int("x", 7), arch.str("x", None), arch.strings("x", default=[])) == (7, None, [])
    assert arch.ints("x", 3, 5) == [5, 5, 5]
    assert arch.ints("x", 3, [1, 2, 3]) == [1, 2, 3]


def test_bools_count_as_integers_and_zero_and_one_as_bools():
    assert meta(x=True).int("x") == 1
    assert meta(x=np.array([True, False])).ints("x", 2) == [1, 0]
    assert meta(x=1).bool("x") is True
    assert meta(x=np.array([0, 1], np.uint32)).bools("x", 2) == [False, True]


def test_limits_are_checked_on_numbers_and_on_lists():
    assert meta(x=8).int("x", low=1, high=8) == 8
    with pytest.raises(FileError, match=r"toy\.x: is 4,294,967,295, out of range \(1 to 65,536\)"):
        meta(x=0xFFFFFFFF).int("x", low=1, high=65536)
    with pytest.raises(FileError, match="is -1, out of range"):
        meta(x=np.array([3, -1])).ints("x", 2, low=0)
    assert meta().int("x", -1, low=0) == -1


@pytest.mark.parametrize("name", ["", "a b", "x\n", "\udcff"])
def test_an_architecture_that_is_no_name_is_an_error(name):
    with pytest.raises(FileError, match=r"general\.architecture: is"):
        _ = Metadata(Path("m.gguf"), {"general.architecture": name}).architecture
