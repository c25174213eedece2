"""The writer: what it writes is read back by the gguf package and by hotset, and nothing unfinished is left."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.errors import FileError, InputError
from hotset.gguf import GGUFWriter, open_gguf


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_the_gguf_package_reads_what_is_written(make_toy, tmp_path, version, alignment):
    (path,) = make_toy(tmp_path / "toy.gguf", version=version, alignment=alignment).write()
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        assert ours.version == version
        assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors)
        for tensor in theirs.tensors:
            assert ours.tensors[tensor.name].offset == tensor.data_offset
            assert ours.data(tensor.name).tobytes() == tensor.data.tobytes()
    assert theirs.fields["toymoe.feed_forward_length"].contents() == [64, 96]
    assert theirs.fields["toymoe.big"].types == [gguf.GGUFValueType.UINT64]
    assert theirs.fields["toymoe.pattern"].contents() == [True, False]
    table = next(tensor for tensor in theirs.tensors if tensor.name == "table")
    assert table.data.tolist() == list(range(7))


numbers = st.integers(-(1 << 63), (1 << 63) - 1)
scalars = st.one_of(st.booleans(), numbers, st.text(), st.floats(width=32, allow_nan=False))
lists = st.one_of(
    *(st.lists(kind, min_size=1, max_size=5) for kind in (st.booleans(), numbers, st.text(), st.binary()))
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,9}\.[a-z_0-9]{1,9}", fullmatch=True), scalars | lists, max_size=8))
def test_any_metadata_comes_back(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("any") / "m.gguf"
    pairs = {key: value for key, value in pairs.items() if not key.startswith("split.") and key != "general.alignment"}
    writer = GGUFWriter(path)
    for key, value in pairs.items():
        writer.metadata(key, value)
    writer.write()
    with open_gguf(path) as model:
        assert list(model.metadata) == list(pairs)
        for key, value in pairs.items():
            if not isinstance(value, list):
                assert model.metadata[key] == value
            elif isinstance(value[0], (str, bytes)):
                expected = [
                    item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item for item in value
                ]
                assert [model.metadata[key].raw(i) for i in range(len(value))] == expected
            else:
                assert model.metadata[key].tolist() == value


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (0, None, "u32"),
        ((1 << 32) - 1, None, "u32"),
        (-1, None, "i32"),
        (1 << 32, None, "u64"),
        (-(1 << 40), None, "i64"),
        (1.5, None, "f32"),
        (True, None, "bool"),
        (b"\xff", None, "str"),
        (3, "u16", "u16"),
        ([1, -1], None, "i32[]"),
        ([1, 2.5], None, "f32[]"),
        ([], "str", "str[]"),
        ([1, 2], "i64", "i64[]"),
        (np.array([1, 2], np.int16), None, "i16[]"),
        (np.array([True]), None, "bool[]"),
        (np.zeros(2, np.float64), None, "f64[]"),
    ],
)
def test_the_type_follows_the_value_or_is_given(tmp_path, value, type_, expected):
    writer = GGUFWriter(tmp_path / "m.gguf")
    writer.metadata("a.b", value, type_)
    (path,) = writer.write()
    with open_gguf(path) as model:
        assert model.metadata.type_of("a.b") == expected


@pytest.mark.parametrize(
    ("key", "value", "type_"),
    [
        ("a.b", [], None),
        ("a.b", [1, "x"], None),
        ("a.b", None, None),
        ("a.b", 300, "u8"),
        ("a.b", "x", "u8"),
        ("a.b", 1e300, "f32"),
        ("a.b", 1, "u128"),
        ("a.b", 1 << 70, None),
        ("a\n", 1, None),
        ("", 1, None),
        ("general.alignment", 64, None),
        ("split.no", 1, None),
        ("a.twice", 1, None),
    ],
)
def test_metadata_that_cannot_be_written_is_an_error(tmp_path, key, value, type_):
    writer = GGUFWriter(tmp_path / "m.gguf")
    writer.metadata("a.twice", 1)
    with pytest.raises(InputError, match="metadata"):
        writer.metadata(key, value, type_)


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        ("", "F32", (32,)),
        ("n" * 64, "F32", (32,)),
        ("a\n", "F32", (32,)),
        ("t", "F99", (32,)),
        ("t", 4, (32,)),
        ("t", "F32", ()),
        ("t", "F32", (1, 2, 3, 4, 5)),
        ("t", "F32", (0, 4)),
        ("t", "Q4_K", (2, 704)),
        ("t", "F32", None),
        ("twice", "F32", (32,)),
    ],
)
def test_a_tensor_that_cannot_be_written_is_an_error(tmp_path, name, kind, shape):
    writer = GGUFWriter(tmp_path / "m.gguf")
    writer.tensor("twice", bytes(128), "F32", (32,))
    with pytest.raises(InputError, match=r"tensor|ggml type"):
        writer.tensor(name, b"", kind, shape)


@pytest.mark.parametrize("options", [{"alignment": 0}, {"alignment": 24}, {"version": 1}, {"split": 0}])
def test_options_out_of_range_are_an_error(tmp_path, options):
    with pytest.raises(InputError):
        GGUFWriter(tmp_path / "m.gguf", **options)


def failing():
    yield bytes(64)
    raise RuntimeError("source broke")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (bytes(127), InputError),
        (bytes(129), InputError),
        ([bytes(64)] * 3, InputError),
        (np.zeros(32, np.int32), InputError),
        (failing, RuntimeError),
    ],
    ids=["short", "long", "chunks", "integers", "broken source"],
)
@pytest.mark.parametrize("split", [1, 2])
def test_an_error_while_writing_leaves_nothing_and_keeps_what_was_there(tmp_path, data, error, split):
    (tmp_path / "m.gguf").write_bytes(b"old")
    writer = GGUFWriter(tmp_path / "m.gguf", split=split)
    writer.tensor("good", np.zeros(32, np.float32))
    writer.tensor("bad", data, "F32", (32,))
    with pytest.raises(error):
        writer.write()
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert (tmp_path / "m.gguf").read_bytes() == b"old"


def test_chunks_are_made_while_they_are_written(tmp_path, traced):
    n_chunks, chunk = 64, 1 << 20

    def chunks():
        for index in range(n_chunks):
            yield np.full(chunk, index, np.uint8)

    writer = GGUFWriter(tmp_path / "big.gguf")
    writer.tensor("t", chunks, "F32", (n_chunks, chunk // 4))
    (path,) = writer.write()
    assert traced() < 8 << 20
    with open_gguf(path) as model:
        assert model.data("t")[::chunk].tolist() == list(range(n_chunks))


def test_arrays_are_stored_as_the_type_says(tmp_path):
    values = np.linspace(-2, 2, 64).reshape(2, 32)
    writer = GGUFWriter(tmp_path / "m.gguf")
    for kind in ("F32", "F16", "F64"):
        writer.tensor(kind, values, kind)
    writer.tensor("turned", values.T, "F32")
    (path,) = writer.write()
    with open_gguf(path) as model:
        for kind, dtype in (("F32", np.float32), ("F16", np.float16), ("F64", np.float64)):
            assert model.data(kind).tobytes() == values.astype(dtype).tobytes()
        assert model.tensors["turned"].shape == (32, 2)
        assert model.data("turned").tobytes() == values.T.astype(np.float32).tobytes()


def test_parts_hold_about_the_same_and_only_the_first_has_the_metadata(make_toy, tmp_path):
    parts = make_toy(tmp_path / "toy.gguf", split=3, alignment=64).write()
    assert [part.name for part in parts] == [f"toy-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    readers = [gguf.GGUFReader(part) for part in parts]
    assert [len(reader.tensors) for reader in readers] == [2, 2, 2]
    assert [reader.fields["split.no"].contents() for reader in readers] == [0, 1, 2]
    assert ["general.architecture" in reader.fields for reader in readers] == [True, False, False]


def test_a_file_may_be_written_over_itself_while_it_is_open(make_toy, tmp_path):
    (path,) = make_toy(tmp_path / "toy.gguf").write()
    with open_gguf(path) as model:
        before = model.data("table").tobytes()
        GGUFWriter(path, "other").write()
        assert model.data("table").tobytes() == before
    with open_gguf(path) as model, pytest.raises(FileError):
        model.data("table")
