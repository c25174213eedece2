"""Files that are damaged, hostile or something else: each is an error that names the file, the thing and the value."""

from __future__ import annotations

import os
import struct

import pytest

from hotset.errors import FileError, UnsupportedError
from hotset.gguf import GGML_TYPES, REMOVED_TYPES, open_gguf

U64_MAX = (1 << 64) - 1
F32_DATA = bytes(128)


def refused(path, match: str, error: type[FileError] = FileError) -> FileError:
    with pytest.raises(error, match=match) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (b"", "is empty"),
        (b"GGUF\x03\0\0\0", "8 bytes, fewer than a GGUF header"),
        (b"PK\x03\x04", "ZIP archive or PyTorch"),
        (b"\x80\x02", "pickle"),
        (b"\x08\x01\0\0\0\0\0\0" + b'{"a.weight":{', "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
        (b"\n <!DOCTYPE html><html>", "HTML.*resolve"),
        (b'{"error":"Invalid credentials"}', "JSON"),
        (b"tjgg\x01\0\0\0", "before GGUF"),
        (b"\0" * 40, "did not finish"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"FUGG\0\0\0\x03", "starts with b'FUGG'"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path, head, match):
    path = tmp_path / "model.gguf"
    path.write_bytes(head + bytes(40) if len(head) > 8 or head[:2] in (b"PK", b"\x80\x02", b"\x1f\x8b") else head)
    if len(head) == 8 and head[:4] != b"GGUF":
        path.write_bytes(head + bytes(40))
    refused(path, match)


def test_a_path_that_is_no_file_is_an_error(tmp_path):
    refused(tmp_path / "absent.gguf", "is not there")
    refused(tmp_path, "is a folder")
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(tmp_path / "pipe.gguf", "no regular file")
    refused("a\0b.gguf", "cannot be read")
    refused("x" * 300 + ".gguf", "cannot be read")


def test_a_raw_piece_is_told_apart_from_a_damaged_file(tmp_path, toy_path):
    piece = tmp_path / "toy.gguf.part1of2"
    piece.write_bytes(toy_path.read_bytes()[:-200])
    refused(piece, "cut off; this is a raw piece")


@pytest.mark.parametrize(
    ("version", "match"),
    [
        (0, "too old"),
        (1, "too old"),
        (4, "is 4"),
        (50331648, "50331648: a big-endian file of version 3"),
        (33554432, "big-endian"),
    ],
)
def test_a_version_that_is_not_read_is_named(forge, version, match):
    refused(forge.file(version=version), match, UnsupportedError)


@pytest.mark.parametrize("version", [2, 3])
def test_an_empty_file_of_either_version_loads(forge, version):
    with open_gguf(forge.file(version=version)) as model:
        assert (model.version, len(model.metadata), len(model.tensors)) == (version, 0, 0)


@pytest.mark.parametrize("count", [1000, 1 << 31, 1 << 63, U64_MAX])
def test_absurd_counts_are_refused_without_allocating(forge, traced, count):
    pair, length = forge.u32("a.b", 1), struct.pack("<Q", count)
    refused(forge.file((pair,), n_pairs=count), "metadata")
    refused(forge.file((pair,), n_tensors=count), "tensor count: claims|tensor")
    for type_id in (0, 7, 8, 12):
        refused(forge.file((forge.array("a.list", type_id, count),)), "a.list: claims")
    refused(forge.file((forge.pair("a.text", 8, length),)), "a.text: (claims|needs)")
    refused(forge.file((length + b"a.b",)), "metadata key 1 of 1: (claims|needs)")
    refused(forge.file((), (length + b"t" * 2 + bytes(40),)), "name of tensor 1 of 1")
    assert traced() < 10 << 20


def test_a_count_of_tensors_beyond_the_limit_is_refused_even_where_it_fits(forge):
    path = forge.file(n_tensors=1 << 20)
    os.truncate(path, 1 << 30)  # sparse: takes no space
    refused(path, "tensor count: claims 1,048,576 items, but the limit")


def test_a_string_in_an_array_that_passes_the_end_is_named(forge):
    payload = forge.string("ok") + struct.pack("<Q", U64_MAX) + bytes(100)
    refused(
        forge.file((forge.array("a.list", 8, 3, payload),)), "a.list: string 1 of 3 claims 18,446,744,073,709,551,615"
    )


def test_an_array_of_strings_that_takes_too_much_is_refused(forge):
    path = forge.file((forge.array("a.list", 8, 1, struct.pack("<Q", 300 << 20)),))
    os.truncate(path, 1 << 30)
    refused(path, "a.list: takes 314,572,808 bytes, over the limit")


@pytest.mark.parametrize("type_id", [13, 14, 255, 0xFFFFFFFF])
def test_an_unknown_value_type_is_an_error_at_its_key(forge, type_id):
    refused(forge.file((forge.pair("a.b", type_id, bytes(8)),)), f"a.b: has value type {type_id}")
    refused(forge.file((forge.array("a.c", type_id, 1, bytes(8)),)), f"a.c: has value type {type_id}")


def test_an_array_of_arrays_is_refused_by_name(forge):
    refused(forge.file((forge.array("a.b", 9, 1, bytes(16)),)), "a.b: is an array of arrays", UnsupportedError)


def test_a_bool_is_zero_or_one(forge):
    refused(forge.file((forge.pair("a.b", 7, b"\x02"),)), "a.b: is a bool of value 2")
    refused(forge.file((forge.array("a.b", 7, 3, b"\x00\x01\xff"),)), "a.b: is a bool of value 255")


@pytest.mark.parametrize("key", [b"", b"a\0b", b"a\nb", b"caf\xc3\xa9", b"\xff", b"a\x7f"])
def test_a_key_that_is_no_printable_ascii_is_an_error(forge, key):
    refused(forge.file((forge.u32(key, 1),)), "metadata key 1 of 1: is b'.*printable ASCII")


@pytest.mark.parametrize("value", [1, 2])
def test_a_key_that_stands_twice_is_an_error_naming_both_places(forge, value):
    refused(
        forge.file((forge.u32("a.b", 1), forge.u32("a.b", value))), "a.b: metadata key stands twice, at bytes 24 and 43"
    )


@pytest.mark.parametrize("name", [b"", b"a\0b", b"a\nb", b"a\xff", b"n" * 64, b"n" * 500])
def test_a_tensor_name_that_is_not_allowed_is_an_error(forge, name):
    refused(forge.file((), (forge.tensor(name),), F32_DATA), "name of tensor 1 of 1: is b'.*names are printable UTF-8")


def test_a_tensor_name_of_63_bytes_loads(forge):
    with open_gguf(forge.file((), (forge.tensor(b"n" * 63),), F32_DATA)) as model:
        assert list(model.tensors) == ["n" * 63]


@pytest.mark.parametrize("offset", [0, 128])
def test_a_tensor_that_stands_twice_is_an_error_naming_both_places(forge, offset):
    tensors = (forge.tensor("t"), forge.tensor("t", offset=offset))
    refused(forge.file((), tensors, F32_DATA * 2), "t: tensor stands twice, at bytes 24 and 57")


@pytest.mark.parametrize(
    ("dimensions", "match"),
    [
        ((), "has 0 dimensions"),
        ((1,) * 5, "has 5 dimensions"),
        ((0,), r"shape \[0\]: no dimension"),
        ((32, 0), r"shape \[0, 32\]"),
        ((1 << 32, 1 << 32), "too many elements"),
        ((U64_MAX,), "too many elements"),
        ((1 << 16,) * 4, "too many elements"),
        ((33,), "it is cut off"),
        ((1 << 40,), "it is cut off"),
    ],
)
def test_dimensions_that_cannot_be_are_refused(forge, dimensions, match):
    refused(forge.file((), (forge.tensor("t", dimensions),), F32_DATA), f"t: .*{match}")


@pytest.mark.parametrize("offset", [32, 128, 1 << 40, 1 << 63, (1 << 64) - 32])
def test_a_tensor_beyond_the_end_is_cut_off(forge, offset):
    refused(
        forge.file((), (forge.tensor("t", offset=offset),), F32_DATA),
        "t: takes bytes .* but the file ends at 192: it is cut off",
    )


def test_tensors_that_overlap_are_an_error_naming_both(forge):
    tensors = (forge.tensor("a", offset=96), forge.tensor("b"))
    refused(forge.file((), tensors, bytes(256)), "a: starts at byte 192, inside tensor b, which takes bytes 96 to 224")


def test_tensors_may_stand_in_any_order_and_leave_gaps(forge):
    tensors = (forge.tensor("a", offset=256), forge.tensor("b"))
    with open_gguf(forge.file((), tensors, bytes(384))) as model:
        assert [tensor.offset for tensor in model.tensors.values()] == [352, 96]


def test_columns_that_are_no_multiple_of_the_block_are_an_error(forge):
    problem = "blk.0.ffn_down_exps.weight: has 704 columns of Q4_K, not a multiple of its block of 256"
    refused(forge.file((), (forge.tensor("blk.0.ffn_down_exps.weight", (704, 4), 12),), bytes(4096)), problem)


@pytest.mark.parametrize("type_id", [*range(46), 0xFFFFFFFF])
def test_each_type_id_is_loaded_or_named(forge, type_id):
    path = forge.file((), (forge.tensor("blk.0.w", (2560, 2), type_id),), bytes(2560 * 2 * 8))
    if type_id in GGML_TYPES:
        with open_gguf(path) as model:
            assert model.tensors["blk.0.w"].ggml_type.id == type_id
            assert model.data("blk.0.w").nbytes == model.tensors["blk.0.w"].n_bytes
    elif type_id in REMOVED_TYPES:
        refused(path, f"tensor blk.0.w has ggml type {type_id} .{REMOVED_TYPES[type_id]}., removed", UnsupportedError)
    else:
        refused(path, f"tensor blk.0.w has ggml type {type_id}, unknown to this build", UnsupportedError)


def test_all_tensors_of_unknown_types_are_listed_at_once(forge):
    kinds = {"a": 0, "b": 99, "c": 4, "d": 99}
    path = forge.file((), tuple(forge.tensor(name, type_id=kind) for name, kind in kinds.items()), F32_DATA)
    error = refused(
        path,
        r"tensor c has ggml type 4 \(Q4_2\), removed.*; tensors b, d have ggml type 99, unknown.*Ollama",
        UnsupportedError,
    )
    assert error.value == {4: ["c"], 99: ["b", "d"]}


ALIGNMENTS_REFUSED = [0, 1, 2, 3, 4, 12, 33, 1 << 21, 1 << 31]


@pytest.mark.parametrize("alignment", ALIGNMENTS_REFUSED)
def test_an_alignment_out_of_bounds_is_an_error_with_its_value(forge, alignment):
    refused(forge.file((forge.u32("general.alignment", alignment),)), rf"general.alignment: is {alignment} \(u32\)")


def test_the_shortest_file_with_alignment_zero_is_refused(forge, tmp_path):
    path = tmp_path / "zero.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + forge.u32("general.alignment", 0)[:33])
    assert path.stat().st_size == 57
    refused(path, "general.alignment: is 0")


def test_an_alignment_of_another_type_is_an_error(forge):
    key = "general.alignment"
    for pair in (
        forge.pair(key, 10, struct.pack("<Q", 32)),
        forge.pair(key, 5, struct.pack("<i", -32)),
        forge.text(key, "32"),
    ):
        refused(forge.file((pair,)), r"general.alignment: is .* a u32 power of two")
    refused(forge.file((forge.array(key, 4, 1, struct.pack("<I", 32)),)), r"general.alignment: is an array")
    refused(forge.file((forge.u32(key, 32), forge.u32(key, 32))), "stands twice")


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096, 1 << 20])
def test_the_same_tensors_load_at_any_alignment(make_toy, tmp_path, toy_path, alignment):
    (path,) = make_toy(tmp_path / "aligned.gguf", alignment=alignment).write()
    with open_gguf(path) as model, open_gguf(toy_path) as plain:
        assert list(model.tensors) == list(plain.tensors)
        for name, tensor in model.tensors.items():
            assert tensor.offset % alignment == 0
            assert model.data(name).tobytes() == plain.data(name).tobytes()


def test_an_offset_that_is_not_aligned_is_an_error(forge):
    refused(
        forge.file((), (forge.tensor("t", offset=16),), bytes(256)),
        "t: starts at offset 16, not a multiple of the alignment 32",
    )


def test_values_that_are_no_utf8_never_raise(forge):
    pairs = (
        forge.text("general.name", b"\xff\xfe"),
        forge.text("tokenizer.chat_template", b"{{ \xe2\x28 }}"),
        forge.array("tokenizer.ggml.tokens", 8, 2, forge.string(b"\xc3") + forge.string(b"\0\n")),
    )
    with open_gguf(forge.file(pairs)) as model:
        assert model.metadata["general.name"] == "\udcff\udcfe"
        assert model.metadata.bytes("tokenizer.chat_template") == b"{{ \xe2\x28 }}"
        assert list(model.metadata.strings("tokenizer.ggml.tokens")) == ["\udcc3", "\0\n"]
