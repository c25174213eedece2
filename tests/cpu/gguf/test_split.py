"""Split models: the keys in the files say what they are, and only the same folder is searched."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest

from hotset.errors import FileError, UnsupportedError
from hotset.gguf import open_gguf


@pytest.fixture
def parts(make_toy, tmp_path):
    return make_toy(tmp_path / "toy.gguf", split=3).write()


def refused(path, match: str, error: type[FileError] = FileError) -> None:
    with pytest.raises(error, match=match):
        open_gguf(path)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_opens_the_whole_model(parts, make_toy, tmp_path, given):
    (whole,) = make_toy(tmp_path / "whole.gguf").write()
    with open_gguf(parts[given]) as model, open_gguf(whole) as plain:
        assert model.parts == parts
        assert model.metadata.architecture == "toymoe"
        assert list(model.tensors) == list(plain.tensors)
        assert {tensor.part for tensor in model.tensors.values()} == {0, 1, 2}
        assert model.file_bytes == sum(part.stat().st_size for part in parts)
        for name in plain.tensors:
            assert model.data(name).tobytes() == plain.data(name).tobytes()


def test_parts_written_by_the_gguf_package_open(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "toymoe", split_max_tensors=2)
    arrays = {f"t{i}": np.full(32, i, np.float32) for i in range(5)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "theirs-00002-of-00003.gguf") as model:
        assert len(model.parts) == 3
        for name, array in arrays.items():
            assert np.array_equal(model.data(name).view(np.float32), array)


def test_a_missing_part_is_named_with_those_found(parts):
    parts[2].unlink()
    refused(
        parts[1],
        r"part 3 of 3: is missing: expected toy-00003-of-00003\.gguf .* found toy-00001-of-00003\.gguf, toy-00002",
    )


def test_a_part_in_another_folder_is_not_searched(parts, tmp_path):
    (tmp_path / "other").mkdir()
    parts[2].rename(tmp_path / "other" / parts[2].name)
    refused(parts[0], "expected toy-00003-of-00003.gguf in the same folder")


def test_a_part_with_another_name_is_told_its_name(parts, tmp_path):
    renamed = parts[1].rename(tmp_path / "model.gguf")
    refused(renamed, r"says that this is part 2 of 3, but the name is model\.gguf.*model-00002-of-00003\.gguf")


def test_a_part_renamed_to_another_number_is_an_error(parts, tmp_path):
    parts[2].unlink()
    renamed = parts[1].rename(parts[2])
    refused(renamed, "says that this is part 2 of 3, but the name is toy-00003-of-00003.gguf")
    refused(parts[0], "is missing: expected toy-00002-of-00003.gguf")


def test_two_parts_with_their_names_exchanged_are_an_error(parts, tmp_path):
    spare = parts[1].rename(tmp_path / "spare")
    parts[2].rename(parts[1])
    spare.rename(parts[2])
    refused(parts[0], "toy-00002-of-00003.gguf: split.no: says part 3 of 3, but the name says part 2 of 3")


def test_a_part_of_another_model_is_an_error(parts, make_toy, tmp_path):
    (tmp_path / "other").mkdir()
    foreign = make_toy(tmp_path / "other" / "toy.gguf", split=4).write()
    parts[1].write_bytes(foreign[1].read_bytes())
    refused(parts[0], "says part 2 of 4, but the name says part 2 of 3")


def test_a_single_file_with_the_name_of_a_part_loads(toy_path):
    path = toy_path.rename(toy_path.with_name("x-00001-of-00013.gguf"))
    with open_gguf(path) as model:
        assert model.parts == (path,)


def test_a_split_of_one_part_loads_under_any_name(forge):
    with open_gguf(forge.file((forge.u32("split.no", 0), forge.u32("split.count", 1)))) as model:
        assert len(model.parts) == 1


@pytest.mark.parametrize(
    ("number", "count", "match"), [(3, 3, "split.no: is 3"), (5, 1, "split.no"), (0, 1 << 16, "split.count")]
)
def test_a_place_outside_of_the_split_is_an_error(forge, number, count, match):
    refused(forge.file((forge.u32("split.no", number), forge.u32("split.count", count))), match)


def test_a_split_key_of_another_kind_is_an_error(forge):
    refused(forge.file((forge.text("split.count", "3"),)), "split.count: is '3', but should be an integer")


def forge_part(
    forge, number: int, names: tuple[str, ...], *, total: int, count: int = 2, type_id: int = 0, data: bytes = b""
):
    pairs = (forge.u32("split.no", number), forge.u32("split.count", count), forge.u32("split.tensors.count", total))
    tensors = tuple(forge.tensor(name, type_id=type_id, offset=128 * i) for i, name in enumerate(names))
    path = forge.file(pairs, tensors, data or bytes(128 * len(names)))
    return path.rename(path.with_name(f"f-0000{number + 1}-of-0000{count}.gguf"))


@pytest.mark.parametrize("fill", [b"\0", b"\1"])
def test_a_tensor_in_two_parts_is_an_error_naming_both(forge, fill):
    first = forge_part(forge, 0, ("a", "b"), total=3)
    forge_part(forge, 1, ("b",), total=3, data=fill * 128)
    refused(first, "b: tensor stands twice, in f-00001-of-00002.gguf and in f-00002-of-00002.gguf")


def test_a_wrong_count_of_tensors_is_an_error(forge):
    first = forge_part(forge, 0, ("a", "b"), total=4)
    forge_part(forge, 1, ("c",), total=4)
    refused(first, "split.tensors.count: is 4, but the 2 parts hold 3 tensors")


def test_unknown_types_of_all_parts_are_listed_at_once(forge):
    first = forge_part(forge, 0, ("a",), total=2, type_id=77)
    forge_part(forge, 1, ("b",), total=2, type_id=77)
    refused(first, "tensors a, b have ggml type 77", UnsupportedError)


def test_a_first_part_without_tensors_loads(forge):
    forge_part(forge, 0, (), total=2)
    with open_gguf(forge_part(forge, 1, ("a", "b"), total=2)) as model:
        assert list(model.tensors) == ["a", "b"]


@pytest.mark.parametrize("name", ["joined.gguf", "toy-00001-of-00003.gguf"])
def test_parts_joined_with_cat_are_told_how_to_merge(parts, tmp_path, name):
    raw = b"".join(part.read_bytes() for part in parts)
    (tmp_path / "joined").mkdir()
    path = tmp_path / "joined" / name
    path.write_bytes(raw)
    refused(path, f"holds a second GGUF file at byte {len(parts[0].read_bytes()):,}: .*cat.*gguf-split --merge")


def test_a_joined_file_whose_first_part_is_not_padded_is_seen_too(forge):
    first = forge.file((), (forge.tensor("a", (5,)),), bytes(20)).read_bytes()
    forge.path.write_bytes(first + b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    refused(forge.path, f"holds a second GGUF file at byte {len(first)}")


def test_other_bytes_after_the_data_are_allowed(toy_path):
    with toy_path.open("ab") as file:
        file.write(b"signature of somebody")
    open_gguf(toy_path).close()
