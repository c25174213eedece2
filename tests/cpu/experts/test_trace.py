from __future__ import annotations

import numpy as np
import pytest

from hotset.errors import FileError, InputError
from hotset.experts.trace import Trace


def parts(**changes):
    experts = np.array([[[0, 1], [2, 3]], [[1, 2], [3, 0]], [[3, 1], [0, 1]]], np.uint8)
    return {"experts": experts, "offsets": np.array([0, 2, 3]), "n_experts": np.array(4)} | changes


def test_a_trace_is_read_back(tmp_path):
    np.savez_compressed(tmp_path / "trace.npz", **parts())
    trace = Trace.read(tmp_path / "trace.npz")
    assert (trace.n_tokens, trace.n_layers, trace.k, trace.n_experts) == (3, 2, 2, 4)
    assert np.array_equal(trace.experts, parts()["experts"])


def test_the_first_tokens_may_cut_an_answer():
    trace = Trace(**parts(n_experts=4))
    assert trace.first(1).offsets.tolist() == [0, 1]
    assert trace.first(2).offsets.tolist() == [0, 2]
    assert trace.first(9).offsets.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": np.zeros((3, 2), np.uint8)}, "tokens, layers, k"),
        ({"experts": parts()["experts"].astype(np.float32)}, "whole numbers"),
        ({"experts": parts()["experts"].astype(np.int8) - 1}, "go from -1 to 2"),
        ({"n_experts": np.array(3)}, "n_experts is 3"),
        ({"n_experts": np.array([3, 4])}, "cannot be read"),
        ({"n_experts": np.array(10**11)}, "100,000,000,000 experts; 1 to 65,536 are possible"),
        ({"experts": np.ones((3, 2, 2), np.uint8)}, "same expert twice"),
        ({"offsets": np.array([0, 2])}, "rise from 0"),
        ({"offsets": np.array([0, 4, 3])}, "rise from 0"),
        ({"offsets": np.array([1, 3])}, "rise from 0"),
        ({"offsets": np.array([], np.int64)}, "offsets"),
        ({"offsets": np.array([0.0, 3.0])}, "offsets"),
        ({"experts": np.array([None])}, "cannot be read"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(tmp_path, changes, message):
    np.savez(tmp_path / "trace.npz", **parts(**changes))
    with pytest.raises(FileError, match=message) as caught:
        Trace.read(tmp_path / "trace.npz")
    assert "trace.npz" in str(caught.value)


def test_a_missing_part_is_refused(tmp_path):
    np.savez(tmp_path / "trace.npz", experts=parts()["experts"])
    with pytest.raises(FileError, match="offsets"):
        Trace.read(tmp_path / "trace.npz")


def test_a_damaged_file_is_refused_wherever_it_is_cut(tmp_path):
    whole, broken = tmp_path / "whole.npz", tmp_path / "broken.npz"
    np.savez_compressed(whole, **parts())
    content = whole.read_bytes()
    for size in range(0, len(content), 37):
        broken.write_bytes(content[:size])
        with pytest.raises(FileError):
            Trace.read(broken)
    for place in range(0, len(content), 29):
        broken.write_bytes(content[:place] + bytes([content[place] ^ 0x5A]) + content[place + 1 :])
        try:
            Trace.read(broken)
        except FileError:
            continue


@pytest.mark.parametrize("content", [b"GGUF", b"\x93NUMPY", b"PK\x03\x04"])
def test_another_kind_of_file_is_refused(tmp_path, content):
    (tmp_path / "trace.npz").write_bytes(content)
    with pytest.raises(FileError, match="recorded picks"):
        Trace.read(tmp_path / "trace.npz")


def test_a_lone_array_is_refused(tmp_path):
    np.save(tmp_path / "trace.npy", parts()["experts"])
    with pytest.raises(FileError, match="recorded picks"):
        Trace.read(tmp_path / "trace.npy")


def test_a_file_that_is_not_there_or_empty_is_named(tmp_path):
    with pytest.raises(FileError, match=r"absent\.npz: trace: no such file; give a trace file of `hotset trace`"):
        Trace.read(tmp_path / "absent.npz")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(FileError, match=r"empty\.csv: trace: is empty"):
        Trace.read(tmp_path / "empty.csv")


def test_what_a_file_does_not_know_is_refused_and_not_ignored(tmp_path):
    np.savez(tmp_path / "trace.npz", **parts())
    with pytest.raises(InputError, match="does not tell phases apart"):
        Trace.read(tmp_path / "trace.npz", "prompt")
    with pytest.raises(InputError, match="leave --experts out"):
        Trace.read(tmp_path / "trace.npz", n_experts=4)


def test_a_trace_made_in_memory_is_checked_too():
    with pytest.raises(InputError, match="n_experts is 2"):
        Trace(**parts(n_experts=2))
