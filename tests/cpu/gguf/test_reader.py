"""Reading sound files: the gguf package is the oracle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

import hotset
from hotset.errors import FileError
from hotset.gguf import open_gguf

DEMO = Path(hotset.__file__).parent / "data" / "demo-moe-Q4_K_M.gguf"
# All tensor types and kinds of metadata that the tiny files have; the package takes a second for each large vocabulary.
TINY = (
    "gpt-oss-mxfp4_moe",
    "gpt-oss-q4_k_m",
    "deepseek4",
    "qwen3moe",
    "kimi-k3",
    "mimo2",
    "gemma4",
    "deepseek2-v3-q4_k_m",
)
VOCABULARIES = ("gpt-2", "llama-spm")


def assert_same_as_package(path: Path) -> None:
    theirs = gguf.GGUFReader(path)
    with open_gguf(path) as ours:
        fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, field in fields.items():
            value = ours.metadata[key]
            assert (value if np.isscalar(value) else list(value)) == field.contents(), key
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
            assert (info.ggml_type.id, info.n_bytes, info.offset) == (
                tensor.tensor_type.value,
                tensor.n_bytes,
                tensor.data_offset,
            )
            assert np.array_equal(ours.data(tensor.name), tensor.data.reshape(-1).view(np.uint8))


def test_the_bundled_model_reads_as_the_gguf_package_reads_it():
    assert_same_as_package(DEMO)


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_read_as_the_gguf_package_reads_them(shared, name):
    assert_same_as_package(shared / "golden" / "tiny" / f"{name}.gguf")


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabularies_read_as_the_gguf_package_reads_them(shared, name):
    assert_same_as_package(shared / "vocab" / f"ggml-vocab-{name}.gguf")


def test_every_shared_file_opens(shared):
    paths = sorted(shared.glob("**/*.gguf"))
    assert paths
    for path in paths:
        with open_gguf(path) as model:
            assert model.metadata.architecture
            assert model.total_bytes <= model.file_bytes == path.stat().st_size


def test_data_is_a_read_only_view_of_the_file():
    with open_gguf(DEMO) as model:
        data = model.data("blk.0.attn_k.weight")
        assert (data.dtype, data.flags.owndata, data.flags.writeable) == (np.uint8, False, False)
        info = model.tensors["blk.0.attn_k.weight"]
        raw = DEMO.read_bytes()[info.offset : info.offset + info.n_bytes]
        assert data.tobytes() == raw


def test_bytes_let_go_can_be_read_again():
    with open_gguf(DEMO) as model:
        for name in model.tensors:
            before = model.data(name).tobytes()
            model.let_go(name)
            assert model.data(name).tobytes() == before


def test_a_view_and_the_metadata_outlive_the_file():
    model = open_gguf(DEMO)
    data = model.data("output_norm.weight")
    expected = data.tobytes()
    tokens = model.metadata.strings("tokenizer.ggml.tokens")
    model.close()
    model.close()
    assert data.tobytes() == expected
    assert tokens[0] == "<|endoftext|>"
    with pytest.raises(ValueError, match="the file was closed"):
        model.data("output_norm.weight")


def test_a_missing_tensor_is_an_error_that_names_file_and_tensor():
    with open_gguf(DEMO) as model, pytest.raises(FileError, match=r"demo-moe.*blk\.9\.nothing: tensor is missing"):
        model.data("blk.9.nothing")


def test_reading_imports_neither_torch_nor_numba():
    code = "import sys, hotset.gguf; sys.exit(bool({'torch', 'numba', 'gguf'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_header_hash_tells_headers_and_sizes_apart_but_not_names(tmp_path):
    content = DEMO.read_bytes()

    def hash_of(name, data):
        (tmp_path / name).write_bytes(data)
        with open_gguf(tmp_path / name) as file:
            return file.header_hash

    renamed = content.replace(b"general.architecture", b"general.architecturf", 1)
    assert hash_of("a.gguf", content) == hash_of("b.gguf", content[:-1] + b"x")
    assert len({hash_of("c.gguf", content), hash_of("c.gguf", renamed), hash_of("c.gguf", content + b"more")}) == 3
