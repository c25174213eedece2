from __future__ import annotations

import json

import pytest


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("word " * 200)
    return path


def test_json_has_the_perplexity(call, loaded, text):
    engine = loaded()
    result = call("perplexity", "demo", "-f", text, "-c", "16", "--chunks", "3", "--json")
    value = json.loads(result.out.splitlines()[-1])
    assert value["perplexity"] == pytest.approx(4096)
    assert (value["tokens"], value["chunks"], value["mode"]) == (3 * 7, 3, "fast")
    assert engine.load_arguments["n_ctx"] == 16


def test_the_running_value_goes_to_stderr(call, loaded, text):
    loaded()
    result = call("perplexity", "demo", "-f", text, "-c", "16", "--chunks", "2")
    assert "[1/2] 4096.0000" in result.err
    assert result.out == "perplexity 4096.0000 +- 0.0000 over 14 tokens\n"


def test_a_text_shorter_than_a_window_is_an_error(call, loaded, text):
    loaded()
    result = call("perplexity", "demo", "-f", text, "-c", "1024")
    assert (result.code, result.out) == (1, "")
    assert "less than one window of 1,024" in result.err


def test_an_unknown_mode_is_an_error_before_loading(call, text):
    result = call("perplexity", "demo", "-f", text, "--mode", "slow")
    assert result.code == 1
    assert "'slow' is not one of fast, reference" in result.err
