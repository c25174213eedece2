from __future__ import annotations

import warnings

import pytest

from hotset.text import TokenizerWarning
from hotset.version import __version__


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "No such command"),
        (["run", "demo", "--nonsense"], "No such option"),
        (["run", "demo", "-n", "many"], "valid integer"),
        (["run"], "no model was given"),
        (["run", "demo", "-m", "demo"], "two models were given"),
        (["run", "no-such.gguf"], "there is no such file"),
        (["run", "demo", "-p", "a", "-f", "b"], "-p and -f were both given"),
        (["run", "demo", "-f", "no-such.txt"], "give the path of a text file"),
        (["run", "demo", "-p", "a", "--temp", "-1"], "temperature must be"),
        (["run", "demo", "--device", "abacus"], "device 'abacus' is not one of"),
        (["run", "demo", "--expert-cache", "much"], "expert cache 'much' is no size"),
        (["run", "demo", "--threads", "0"], "threads must be"),
        (["inspect", "no-such.gguf"], "there is no such file"),
        (["perplexity", "demo"], "name a file with -f"),
        (["bench", "demo", "-o", "xml"], "-o 'xml' is not one of"),
        (["bench", "demo", "-p", "0", "-n", "0"], "give at least one number"),
        (["bench", "demo", "-r", "0"], "at least 1 repetition"),
        (["bench", "demo", "-t", "1,two"], "is no list of numbers"),
    ],
)
def test_a_mistake_of_the_user_is_one_message_on_stderr_and_exit_code_1(call, args, message):
    result = call(*args)
    assert (result.code, result.out) == (1, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_file_that_is_no_utf8_is_named_with_the_place(call, tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9")
    result = call("run", "demo", "-f", path)
    assert result.code == 1
    assert "no UTF-8 at byte 3" in result.err


def test_a_bug_is_a_short_notice_and_exit_code_2(call, monkeypatch):
    monkeypatch.setattr("hotset.engine.loading.load", lambda *_, **__: 1 / 0)
    monkeypatch.delenv("HOTSET_DEBUG", raising=False)
    result = call("run", "demo", "-p", "x")
    assert result.code == 2
    assert "bug in hotset" in result.err
    assert "ZeroDivisionError" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("way", ["-v", "HOTSET_DEBUG"])
def test_a_bug_shows_its_traceback_on_demand(call, monkeypatch, way):
    monkeypatch.setattr("hotset.engine.loading.load", lambda *_, **__: 1 / 0)
    if way == "HOTSET_DEBUG":
        monkeypatch.setenv("HOTSET_DEBUG", "1")
    result = call("run", "demo", "-p", "x", *(["-v"] if way == "-v" else []))
    assert result.code == 2
    assert "Traceback" in result.err


def test_ctrl_c_while_loading_ends_quietly_with_130(call, monkeypatch):
    def load(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hotset.engine.loading.load", load)
    result = call("run", "demo", "-p", "x")
    assert result.code == 130
    assert result.err == "interrupted\n"


def test_a_warning_of_the_tokenizer_is_one_line_after_the_first(call, loaded, monkeypatch):
    engine = loaded()

    def load(*_, **__):
        warnings.warn("tokenizer.ggml.pre is missing", TokenizerWarning, stacklevel=1)
        return engine

    monkeypatch.setattr("hotset.engine.loading.load", load)
    lines = call("run", "demo", "-p", "x", "-n", "1").err.splitlines()
    assert lines[0].startswith("expert cache inactive")
    assert lines[1] == "warning: tokenizer.ggml.pre is missing"


def test_version_goes_to_stdout(call):
    assert call("--version") == (0, f"hotset {__version__}\n", "")


def test_the_bare_command_shows_its_commands(call):
    result = call()
    assert result.code == 0
    assert all(name in result.out for name in ("run", "inspect", "bench", "perplexity"))


@pytest.mark.parametrize("command", ["run", "inspect", "bench", "perplexity"])
def test_every_command_has_help(call, command):
    result = call(command, "-h")
    assert (result.code, result.err) == (0, "")
    assert "--json" in result.out
