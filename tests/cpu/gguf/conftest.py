"""A small sound file, and a forge for files that no writer would write."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hotset.gguf import GGUFWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STRING, ARRAY, U32 = 8, 9, 4


class Forge:
    """Puts GGUF files together field by field, right or wrong."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "forged.gguf"

    def string(self, text: str | bytes) -> bytes:
        raw = text if isinstance(text, bytes) else text.encode()
        return struct.pack("<Q", len(raw)) + raw

    def pair(self, key: str | bytes, type_id: int, value: bytes) -> bytes:
        return self.string(key) + struct.pack("<I", type_id) + value

    def text(self, key: str | bytes, text: str | bytes) -> bytes:
        return self.pair(key, STRING, self.string(text))

    def u32(self, key: str | bytes, value: int) -> bytes:
        return self.pair(key, U32, struct.pack("<I", value))

    def array(self, key: str, type_id: int, count: int, payload: bytes = b"") -> bytes:
        return self.pair(key, ARRAY, struct.pack("<IQ", type_id, count) + payload)

    def tensor(
        self, name: str | bytes, dimensions: tuple[int, ...] = (32,), type_id: int = 0, offset: int = 0
    ) -> bytes:
        layout = f"<I{len(dimensions)}QIQ"
        return self.string(name) + struct.pack(layout, len(dimensions), *dimensions, type_id, offset)

    def file(
        self,
        pairs: tuple[bytes, ...] = (),
        tensors: tuple[bytes, ...] = (),
        data: bytes = b"",
        *,
        version: int = 3,
        n_pairs: int | None = None,
        n_tensors: int | None = None,
        alignment: int = 32,
    ) -> Path:
        counts = (len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs)
        header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
        self.path.write_bytes(header + bytes(-len(header) % alignment) + data)
        return self.path


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """Give the most bytes that Python and NumPy held since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path)


def toy(path: Path, **options) -> GGUFWriter:
    """Six tensors of several types and one pair of every kind of value, not written yet."""
    rng = np.random.default_rng(5)
    writer = GGUFWriter(path, "toymoe", **options)
    writer.metadata("toymoe.block_count", 2)
    writer.metadata("toymoe.rope.freq_base", 1e4)
    writer.metadata("toymoe.feed_forward_length", [64, 96])
    writer.metadata("toymoe.shift", -3)
    writer.metadata("toymoe.big", 1 << 40, "u64")
    writer.metadata("toymoe.precise", 0.1, "f64")
    writer.metadata("tokenizer.ggml.tokens", ["a", b"\xc3", "ü", ""])
    writer.metadata("tokenizer.ggml.scores", [0.5, -1.0, 0.0, 2.0])
    writer.metadata("tokenizer.ggml.add_bos_token", True)
    writer.metadata("toymoe.pattern", [True, False])
    writer.tensor("output_norm.weight", rng.standard_normal(32, np.float32))
    for layer in range(2):
        writer.tensor(f"blk.{layer}.up.weight", rng.integers(0, 256, 4 * 2 * 34, np.uint8), "Q8_0", (4, 64))
        writer.tensor(f"blk.{layer}.down_exps.weight", rng.standard_normal((3, 2, 5)).astype(np.float16), "F16")
    writer.tensor("table", np.arange(7, dtype=np.int32), "I32")
    return writer


@pytest.fixture
def make_toy():
    return toy


@pytest.fixture
def toy_path(tmp_path: Path) -> Path:
    (path,) = toy(tmp_path / "toy.gguf").write()
    return path
