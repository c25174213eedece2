from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# One thread: on a machine that does other work too, two would wait for each other.
CPU = ("--device", "cpu", "-t", "1")
TEXT = "The package contains the header files and the static library. " * 20


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def test_run_streams_text_to_stdout_and_reports_on_stderr(hotset):
    done = hotset("run", "demo", "-p", "The Debian installer is", "-n", "8", "--temp", "0", *CPU)
    assert done.returncode == 0
    assert len(done.stdout) > 8
    assert done.stderr.startswith("expert cache inactive: ")
    assert "decode: 7 tokens" in done.stderr
    assert "hit rate" in done.stderr


def test_the_same_seed_gives_the_same_text_and_another_one_another(hotset):
    def text(seed: int) -> str:
        args = ("-p", "The kernel", "-n", "24", *CPU, "--temp", "1.5", "--seed", seed, "--json")
        return json.loads(hotset("run", "demo", *args).stdout)["text"]

    assert text(1) == text(1) != text(2)


def test_lines_from_a_pipe_are_answered_one_by_one(hotset):
    done = hotset("run", "demo", "-n", "4", *CPU, "--json", input="Hello\nAgain\n")
    turns = json.loads(done.stdout.splitlines()[-1])["turns"]
    assert [turn["prompt"] for turn in turns] == ["Hello", "Again"]
    assert turns[1]["reused_tokens"] > 0


def test_inspect_reads_the_bundled_model(hotset):
    value = json.loads(hotset("inspect", "demo", "--json").stdout)
    assert (value["architecture"], value["supported"]) == ("qwen3moe", True)


def test_bench_measures_and_ends_with_json(hotset):
    done = hotset("bench", "demo", "-p", "16", "-n", "4", "-r", "2", *CPU, "--expert-cache", "25%", "--json")
    assert done.returncode == 0
    pp, tg = json.loads(done.stdout.splitlines()[-1])
    assert (pp["test"], tg["test"]) == ("pp16", "tg4")
    assert pp["tokens_per_s"] > 0
    assert 0 <= tg["hit_rate"] <= 1
    assert tg["share_of_ceiling"] > 0


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_perplexity_tells_known_text_from_noise(hotset, text, tmp_path, mode):
    noise = tmp_path / "noise.txt"
    noise.write_text("".join(chr(33 + i * i * 7919 % 90) for i in range(2000)))

    def perplexity(path) -> float:
        done = hotset("perplexity", "demo", "-f", path, "-c", "64", "--chunks", "2", "--mode", mode, *CPU, "--json")
        return json.loads(done.stdout.splitlines()[-1])["perplexity"]

    assert 1 < perplexity(text) < 100 < perplexity(noise)


def test_errors_of_the_user_exit_with_1_and_leave_stdout_empty(hotset):
    done = hotset("run", "no-such.gguf", "-p", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "hotset", "inspect", "demo", "--metadata"]
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True) as process:
        os.close(writer)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_a_terminal_without_unicode_gets_replacements(hotset, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("é ü 猫 " * 8)
    done = hotset(
        "run", "demo", "-f", prompt, "-n", "8", "--temp", "0", *CPU, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_the_package_holds_the_model_its_card_and_the_text_of_the_benchmark():
    code = "from importlib.resources import files; print(*sorted(p.name for p in files('hotset').joinpath('data').iterdir()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"MODEL_CARD.md", "bench.txt", "demo-moe-Q4_K_M.gguf"} <= set(done.stdout.split())
