"""A few thousand damaged copies of a sound file in one process: each loads or is a named error, in bounded time and memory."""

from __future__ import annotations

import os
import resource
import shutil
import struct
import time
from pathlib import Path

import pytest

import hotset
from hotset.errors import FileError
from hotset.gguf import open_gguf

DEMO = Path(hotset.__file__).parent / "data" / "demo-moe-Q4_K_M.gguf"
BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
WORDS = (0, 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1)


def refusal(path: Path) -> FileError | None:
    """Open the file and touch every byte that the reader hands out; anything raised but a `FileError` fails the test."""
    try:
        model = open_gguf(path)
    except FileError as error:
        return error
    with model:
        for name in model.tensors:
            assert model.data(name).nbytes == model.tensors[name].n_bytes
            model.data(name).max()
        for value in model.metadata.values():
            assert isinstance(value, (str, int, float)) or len(list(value)) == len(value)
    return None


def loads(path: Path) -> bool:
    error = refusal(path)
    assert error is None or (str(path) in str(error) and error.thing)
    return error is None


@pytest.fixture
def bounded():
    start, peak_kib = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 100 << 10
    assert time.monotonic() - start < 300  # seconds in practice: only a hang or a blow-up fails


def mutations(original: bytes, header_bytes: int):
    for position in range(header_bytes):
        for value in BYTES:
            yield position, bytes([value])
        yield position, bytes([original[position] ^ 1])
        for word in WORDS:
            yield position, struct.pack("<Q", word)
            if word < 1 << 32:
                yield position, struct.pack("<I", word)


def test_one_changed_field_loads_or_is_a_named_error(toy_path, bounded):
    original = toy_path.read_bytes()
    with open_gguf(toy_path) as model:
        header_bytes = min(tensor.offset for tensor in model.tensors.values())
    loaded = total = 0
    with toy_path.open("r+b", buffering=0) as file:
        for position, change in mutations(original, header_bytes):
            os.pwrite(file.fileno(), change, position)
            loaded += loads(toy_path)
            total += 1
            os.pwrite(file.fileno(), original[position : position + len(change)], position)
    assert toy_path.read_bytes() == original
    assert total > 5000
    assert 0 < loaded < total


def test_a_file_cut_anywhere_is_a_named_error(toy_path, bounded):
    with open_gguf(toy_path) as model:
        last = max(tensor.offset + tensor.n_bytes for tensor in model.tensors.values())
    for size in reversed(range(last)):
        os.truncate(toy_path, size)
        assert not loads(toy_path)


def test_the_bundled_model_cut_at_many_places_is_a_named_error(tmp_path, bounded):
    path = tmp_path / "demo.gguf"
    shutil.copyfile(DEMO, path)
    with open_gguf(path) as model:
        ends = sorted(tensor.offset + tensor.n_bytes for tensor in model.tensors.values())
        header_bytes = min(tensor.offset for tensor in model.tensors.values())
    cuts = {*(end - 1 for end in ends), *range(0, ends[-1], 100_003), *range(0, header_bytes, 1999)}
    for size in sorted(cuts, reverse=True):
        os.truncate(path, size)
        assert not loads(path)


def test_bytes_appended_or_cut_between_two_tensors_never_crash(toy_path, bounded):
    original = toy_path.read_bytes()
    for position in range(24, len(original), 7):
        toy_path.write_bytes(original[:position] + original[position + 4 :])
        loads(toy_path)
        toy_path.write_bytes(original[:position] + b"\xff\0\xff\0" + original[position:])
        loads(toy_path)
