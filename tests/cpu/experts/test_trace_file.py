"""The trace file: what is written is read back, an early end is no damage, and damage is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotset.errors import FileError, HotsetError, InputError
from hotset.experts.policy import Policy
from hotset.experts.simulate import replay_run, simulate
from hotset.experts.trace import Trace
from hotset.experts.trace_file import PhaseCounts, TraceHeader, TraceWriter
from hotset.experts.trace_reader import read_run

HEADER = TraceHeader(
    model="tiny", architecture="qwen3moe", model_hash="00", made_by="test", policy="lrfu:16", span_bytes=(256, 512),
    n_experts=(6, 9), n_slots=(2, 4), k=2, max_rows=3, weights=True,
)  # fmt: skip
NOTHING = {phase: PhaseCounts((0, 0), (0, 0), (0, 0), 0) for phase in ("prompt", "decode")}


def picks_of(rng, rows, header=HEADER):
    return np.array([[rng.permutation(n)[: header.k] for _ in range(rows)] for n in header.n_experts])


def write(path, header=HEADER, *, complete=True):
    """Two answers: a prompt step of 3 rows, one of 1, then four decode steps; returns the steps."""
    rng = np.random.default_rng(0)
    steps = []
    writer = TraceWriter(path, header)
    for _ in range(2):
        writer.answer(4)
        for phase, rows in [("prompt", 3), ("prompt", 1)] + [("decode", 1)] * 4:
            picks, weights = picks_of(rng, rows, header), rng.random((2, rows, 2)).astype(np.float16)
            writer.step(phase, picks, weights)
            steps.append((phase, picks, weights))
        writer.counts(NOTHING)
    writer.close(complete=complete)
    return steps


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.trace"


def test_what_was_written_is_read_back(path):
    steps = write(path)
    run = read_run(path)
    assert run.header == HEADER
    assert run.complete
    assert run.n_steps == run.counted_steps == 12
    assert run.counts == NOTHING
    for i, (phase, picks, weights) in enumerate(steps):
        rows = slice(*run.starts[i : i + 2])
        assert run.phases[i] == ("prompt", "decode").index(phase)
        assert np.array_equal(run.picks[rows], picks.transpose(1, 0, 2))
        assert np.array_equal(run.weights[rows], weights.transpose(1, 0, 2))
        assert set(run.answers[rows]) == {i // 6}


def test_many_experts_take_two_bytes_and_weights_may_be_left_out(path):
    header = replace(HEADER, n_experts=(300, 1000), weights=False)
    steps = write(path, header)
    run = read_run(path)
    assert run.weights is None
    assert np.array_equal(run.picks[:3], steps[0][1].transpose(1, 0, 2))


def test_rows_of_a_batch_belong_to_their_answers(path):
    with TraceWriter(path, HEADER) as writer:
        writer.answer(1)
        writer.answer(1)
        for _ in range(3):
            writer.step("decode", picks_of(np.random.default_rng(1), 2), np.ones((2, 2, 2)), np.array([1, 0]))
    trace = Trace.read(path)
    assert trace.offsets.tolist() == [0, 3, 6]
    assert np.array_equal(trace.experts[0], read_run(path).picks[1])


def test_a_trace_takes_decoded_tokens_by_answer_and_prompts_on_demand(path):
    steps = write(path)
    trace = Trace.read(path)
    assert (trace.n_tokens, trace.offsets.tolist(), trace.span_bytes) == (8, [0, 4, 8], (256, 512))
    assert np.array_equal(trace.experts[4], steps[8][1][:, 0])
    assert Trace.read(path, "prompt").offsets.tolist() == [0, 4, 8]


def test_where_nothing_was_decoded_the_prompts_are_taken(path):
    with TraceWriter(path, HEADER) as writer:
        writer.answer(2)
        writer.step("prompt", picks_of(np.random.default_rng(1), 2), np.ones((2, 2, 2)))
    assert Trace.read(path).n_tokens == 2
    assert Trace.read(path, "decode").n_tokens == 0


def test_a_run_cut_off_anywhere_is_read_as_far_as_it_goes(path):
    write(path)
    whole, content, n_before = read_run(path), path.read_bytes(), 0
    begin = len(HEADER.encoded()) + 16 + 4
    for size in range(begin, len(content)):
        path.write_bytes(content[:size])
        run = read_run(path)
        assert not run.complete
        assert run.n_steps >= n_before
        assert np.array_equal(run.picks, whole.picks[: run.starts[-1]])
        n_before = run.n_steps
    assert n_before == 12


def test_an_error_in_the_middle_leaves_a_usable_file(path):
    def stopped():
        with TraceWriter(path, HEADER) as writer:
            writer.answer(1)
            writer.step("decode", picks_of(np.random.default_rng(1), 1), np.ones((2, 1, 2)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stopped()
    assert (read_run(path).n_steps, read_run(path).complete) == (1, False)


def test_any_changed_byte_is_noticed(path):
    write(path)
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 0x41
        path.write_bytes(changed)
        try:
            run = read_run(path)
        except FileError as error:
            named = error.path == str(path) and "hotset trace" in error.hint
        else:  # a record's length that now reaches past the end reads as a file cut off there
            named = not run.complete
        assert named, place


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "mru"}, "policy 'mru'"),
        ({"k": 7}, "7 picks per token"),
        ({"n_slots": (2, 10)}, "10 slots"),
        ({"n_slots": (2,)}, "slot counts"),
        ({"span_bytes": (256, 100)}, "100 bytes"),
        ({"max_rows": 0}, "0 rows"),
        ({"n_experts": (6, 1 << 17)}, "experts per layer"),
        ({"span_bytes": (), "n_experts": (), "n_slots": ()}, "experts per layer"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        replace(HEADER, **changes)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"k": 2}', "nonsense", "[" * 100_000, HEADER.encoded().decode().replace('"k": 2', '"k": true'), HEADER.encoded().decode().replace("[2, 4]", '["2", 4]')],
)  # fmt: skip
def test_another_header_is_refused(path, text, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(TraceHeader, "encoded", lambda _: text.encode())
        TraceWriter(path, HEADER).close()
    with pytest.raises(FileError, match="header: makes no sense"):
        read_run(path)


def record(path, kind, content):
    with TraceWriter(path, HEADER) as writer:
        writer.answer(1)
        writer._record(kind, content)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (9, b"", "its kind is 9"),
        (1, b"12345678", "not the beginning of answer 1"),
        (2, b"", "a step of 0 bytes"),
        (2, b"\x07\x01\x00", "phase 7"),
        (2, b"\x01\x09\x00", "9 rows"),
        (2, b"\x01\x01\x00" + b"\x05\0\0\0" + bytes([0, 1, 0, 1]) + b"\0" * 8, "answer 5, which has not begun"),
        (2, b"\x01\x01\x00" + b"\0" * 4 + bytes([0, 1, 0, 9]) + b"\0" * 8, "picks expert 9 in layer 1"),
        (2, b"\x01\x01\x00" + b"\0" * 4 + bytes([1, 1, 0, 2]) + b"\0" * 8, "the same expert twice"),
        (3, b"{}", "holds no counters"),
        (3, b'{"prompt": 1, "decode": 2}', "holds no counters"),
        (4, b"x", "has a content"),
        (4, b"", "something follows"),
    ],
)
def test_a_record_that_makes_no_sense_is_named(path, kind, content, message):
    record(path, kind, content)
    with pytest.raises(FileError, match=message):
        read_run(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"HOTTRACE", "8 bytes"),
        (b"GGUF" * 8, "no hotset trace"),
        (b"HOTTRACE\x02" + b"\0" * 30, "version: is 2"),
        (b"HOTTRACE\x01\0\0\0\xff\xff\xff\xff" + b"\0" * 30, "header: takes 4294967295 bytes"),
        (b"HOTTRACE\x01\0\0\0\x02\0\0\0{}abcd", "checksum"),
    ],
)
def test_other_files_are_refused(path, content, message):
    path.write_bytes(content)
    with pytest.raises(FileError, match=message):
        read_run(path)


def test_a_missing_file_and_one_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        read_run(tmp_path / "absent")
    with pytest.raises(FileError, match="cannot be read"):
        read_run(tmp_path)
    with pytest.raises(HotsetError, match="can be written"):
        TraceWriter(tmp_path / "no" / "run.trace", HEADER)


def test_a_replay_counts_phases_apart_and_layers_by_their_slots(path):
    write(path)
    run = read_run(path)
    counts = replay_run(run)
    tokens = Trace(run.picks, np.array([0, len(run.picks)]), 9)
    assert sum(c.hits[0] + c.misses[0] for c in counts.values()) <= tokens.n_tokens * 2
    single = replace(HEADER, max_rows=1)
    with TraceWriter(path, single) as writer:
        writer.answer(0)
        for row in run.picks:
            writer.step("decode", row[:, None], np.ones((2, 1, 2)))
        writer.counts(NOTHING)
    decode = replay_run(read_run(path))["decode"]
    expected = simulate(tokens, [2, 4], Policy())
    assert (decode.hits, decode.misses, decode.overflows) == (expected.hits, expected.misses, expected.overflows)
    assert decode.bytes_fetched == 256 * expected.misses[0] + 512 * expected.misses[1]


def test_a_trace_takes_the_place_of_a_trace_alone(path, tmp_path):
    write(path)
    write(path)
    path.write_bytes(b"")
    write(path)
    for content in (b"GGUF and more", b"text"):
        other = tmp_path / "other"
        other.write_bytes(content)
        with pytest.raises(InputError, match="is there and is no trace, and would be overwritten"):
            TraceWriter(other, HEADER)
        assert other.read_bytes() == content
