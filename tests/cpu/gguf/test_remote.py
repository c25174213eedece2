"""A header behind a URL: a server on this machine sends parts of files, and counts what it sends."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from hotset.errors import FileError
from hotset.gguf import GGUFWriter, open_gguf
from hotset.gguf.remote import LEFT_OUT_FROM, RemoteFile, open_remote
from hotset.gguf.values import LeftOut
from hub_stub import Hub, serving

MIB = 1 << 20


@pytest.fixture
def hub():
    with serving(Hub()) as hub:
        yield hub


def write(path: Path, *, n_words: int = 0, split: int = 1, tensor_bytes: int = 4 * MIB) -> Path:
    """A file with a vocabulary and two tensors."""
    writer = GGUFWriter(path, "qwen3moe", split=split)
    writer.metadata("general.name", "far away")
    if n_words:
        writer.metadata("tokenizer.ggml.tokens", [f"word {i}" for i in range(n_words)])
        writer.metadata("tokenizer.ggml.token_type", np.ones(n_words, np.int32))
        writer.metadata("tokenizer.ggml.merges", [f"wo rd{i}" for i in range(n_words)])
    for name in ("blk.0.a.weight", "blk.0.b.weight", "blk.1.a.weight"):
        writer.tensor(name, np.zeros(tensor_bytes // 4, np.float32))
    writer.write()
    return path


def header_bytes(path: Path) -> int:
    with open_gguf(path) as file:
        return min(t.offset for t in file.tensors.values())


def served(hub: Hub, *paths: Path) -> list[RemoteFile]:
    hub.repos["user/model"] = {p.name: p.read_bytes() for p in paths}
    return [RemoteFile.at(f"{hub.url}/user/model/resolve/main/{p.name}") for p in paths]


def test_a_remote_header_says_what_the_file_says(hub, tmp_path):
    path = write(tmp_path / "m.gguf", n_words=1000)
    remote, fetched = open_remote(served(hub, path))
    with open_gguf(path) as local:
        assert dict(remote.tensors) == dict(local.tensors)
        assert list(remote.metadata["tokenizer.ggml.tokens"]) == list(local.metadata["tokenizer.ggml.tokens"])
        assert remote.metadata.str("general.name") == "far away"
        assert remote.file_bytes == local.file_bytes
    assert fetched == hub.sent


def test_of_a_large_vocabulary_no_more_than_the_header_and_a_megabyte_is_sent(hub, tmp_path):
    path = write(tmp_path / "m.gguf", n_words=150_000)
    remote, fetched = open_remote(served(hub, path))
    assert fetched == hub.sent <= header_bytes(path) + MIB
    assert len(remote.tensors) == 3


def test_large_arrays_of_numbers_are_stepped_over(hub, tmp_path):
    n = 10 * LEFT_OUT_FROM
    writer = GGUFWriter(tmp_path / "m.gguf", "qwen3moe")
    writer.metadata("scores", np.ones(n, np.float32))
    writer.metadata("few", [1, 2, 3])
    writer.tensor("t", np.zeros(8, np.float32))
    writer.write()
    remote, fetched = open_remote(served(hub, tmp_path / "m.gguf"))
    assert fetched < header_bytes(tmp_path / "m.gguf") / 4
    assert remote.metadata["scores"] == LeftOut(n, "f32")
    assert remote.metadata.ints("few") == [1, 2, 3]
    with pytest.raises(FileError, match="LeftOut"):
        remote.metadata.floats("scores")


def test_a_tensors_bytes_are_not_there(hub, tmp_path):
    remote, _ = open_remote(served(hub, write(tmp_path / "m.gguf")))
    with pytest.raises(ValueError, match="only its header"):
        remote.data("blk.0.a.weight")


@pytest.mark.parametrize("given", [0, 2])
def test_one_part_of_a_split_model_leads_to_the_others(hub, tmp_path, given):
    write(tmp_path / "m.gguf", split=3)
    paths = sorted(tmp_path.glob("m-*.gguf"))
    files = served(hub, *paths)
    remote, fetched = open_remote(files[given : given + 1])
    assert [p.name for p in remote.parts] == [p.name for p in paths]
    assert len(remote.tensors) == 3
    assert fetched == hub.sent < MIB


def test_a_server_that_sends_only_whole_files_is_named(hub, tmp_path):
    hub.ranges = False
    with pytest.raises(FileError, match="does not send parts of files; download it"):
        open_remote(served(hub, write(tmp_path / "m.gguf")))


def test_a_file_that_is_not_there_is_named(hub):
    hub.repos["user/model"] = {}
    with pytest.raises(FileError, match="answers 404"):
        open_remote([RemoteFile.at(f"{hub.url}/user/model/resolve/main/none.gguf")])


def test_no_connection_is_named():
    with pytest.raises(FileError, match="cannot be fetched"):
        open_remote([RemoteFile.at("http://127.0.0.1:9/m.gguf")])


def test_a_page_is_no_model(hub):
    hub.repos["user/model"] = {"m.gguf": b"<html>" + b" " * 100}
    with pytest.raises(FileError, match="HTML"):
        open_remote([RemoteFile.at(f"{hub.url}/user/model/resolve/main/m.gguf")])


def test_a_file_cut_off_in_its_header_is_named(hub, tmp_path):
    data = write(tmp_path / "m.gguf", n_words=1000).read_bytes()
    hub.repos["user/model"] = {"m.gguf": data[:9000]}
    with pytest.raises(FileError, match="cut off or damaged"):
        open_remote([RemoteFile.at(f"{hub.url}/user/model/resolve/main/m.gguf")])


def test_a_size_that_is_claimed_is_not_fetched(hub):
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 8)
    hub.repos["user/model"] = {"m.gguf": head + struct.pack("<Q", 1 << 40) + bytes(4 * MIB)}
    with pytest.raises(FileError, match="over the limit"):
        open_remote([RemoteFile.at(f"{hub.url}/user/model/resolve/main/m.gguf")])
    assert hub.sent < MIB


def test_a_token_does_not_follow_to_another_server(hub, tmp_path):
    path = write(tmp_path / "m.gguf")
    with serving(Hub()) as other:
        served(other, path)
        served(hub, path)
        hub.elsewhere = other.url
        file = RemoteFile.at(f"{hub.url}/user/model/resolve/main/m.gguf", {"Authorization": "Bearer secret"})
        open_remote([file])
    assert hub.authorized == [True]
    assert other.authorized == [False]
