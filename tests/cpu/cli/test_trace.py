from __future__ import annotations

import json

import pytest

from hotset.cli.trace import pieces
from hotset.errors import InputError
from hotset.experts.trace_reader import read_run
from samples import TinyMoE, write_dense


def test_a_recorded_run_passes_the_check_and_can_be_simulated(call, tmp_path):
    path = tmp_path / "run.trace"
    result = call(
        "trace", "demo", "-p", "The Debian installer is", "--decode", "12", "-o", path, "--device", "cpu", "--json"
    )
    assert result.code == 0
    assert f"{path}: 5 tokens of text and 12 decoded" in result.out
    facts = json.loads(result.out.splitlines()[-1])
    assert facts["answers"] == 1
    assert call("simulate", "--check", path).code == 0
    (outcome,) = json.loads(call("simulate", path, "--slots", "25%", "--policy", "lru", "--json").out)
    assert outcome["bytes_per_token"] > 0
    assert read_run(path).header.model_hash


def test_a_text_longer_than_the_context_becomes_several_answers():
    assert pieces(list(range(10)), 4, 0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_no_room_and_no_text_are_refused():
    with pytest.raises(InputError, match="no room"):
        pieces([1], 0, 100)
    with pytest.raises(InputError, match="empty"):
        pieces([], 10, 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no text was given"),
        (["-p", ""], "no text was given"),
        (["-p", "x", "-o", "/absent/run.trace"], "there is no folder /absent"),
        (["-p", "x", "-o", "."], "is a folder"),
        (["-p", "x", "-f", "y"], "give the text one way"),
        (["-p", "x", "--decode", "-1"], "give 0 or more"),
    ],
)
def test_arguments_are_checked_before_a_long_load(call, loaded, args, message):
    engine = loaded()
    result = call("trace", "demo", *args)
    assert (result.code, message in result.err) == (1, True)
    assert not engine.load_arguments


def test_a_model_is_not_overwritten_by_its_trace(call, tmp_path):
    path = TinyMoE(n_layers=2).write(tmp_path / "m.gguf")
    content = path.read_bytes()
    result = call("trace", path, "-p", "x", "-o", path)
    assert (result.code, "would be overwritten" in result.err) == (1, True)
    assert path.read_bytes() == content


def test_a_dense_model_has_nothing_to_trace(call, tmp_path):
    dense = write_dense(tmp_path / "dense.gguf")
    result = call("trace", dense, "-p", "x", "-o", tmp_path / "t", "--device", "cpu")
    assert (result.code, "has no experts to trace" in result.err) == (1, True)
    assert not (tmp_path / "t").exists()


def test_an_interrupted_run_leaves_a_trace_that_can_be_replayed(call, tmp_path, monkeypatch):
    def interrupt(text):
        if text.startswith("answer 2"):
            raise KeyboardInterrupt

    (tmp_path / "text").write_text("The Debian installer is what installs Debian. " * 30)
    monkeypatch.setattr("hotset.cli.trace.say", interrupt)
    path = tmp_path / "t"
    result = call("trace", "demo", "-f", tmp_path / "text", "-c", "64", "--decode", "8", "-o", path, "--device", "cpu")
    assert result.code == 130
    run = read_run(path)
    assert (run.complete, run.answers.max()) == (False, 1)
    assert call("simulate", "--check", path).code == 0


def test_prompts_alone_may_be_recorded(call, tmp_path):
    result = call("trace", "demo", "-p", "The Debian installer is", "--decode", "0", "-o", tmp_path / "t")
    assert "5 tokens of text and 0 decoded" in result.out
    assert "% in prompts\n" in result.err
