"""What `hotset trace` records on a real GPU is what the simulator counts."""

import json

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

from hotset.cli import main  # noqa: E402
from hotset.experts.trace_reader import read_run  # noqa: E402


@pytest.mark.parametrize(
    ("size", "policy"), [("25%", "lrfu:16"), ("3slots", "lru"), ("25%", "product"), ("100%", "lfu")]
)
def test_a_recorded_run_is_counted_alike_by_the_simulator(capsys, tmp_path, size, policy):
    text, path = tmp_path / "text", tmp_path / "run.trace"
    # Pieces of 43 tokens: the last rows of a prompt are padded, and every answer may end early.
    text.write_text("The Debian installer is a program that installs Debian on a computer. " * 8)
    arguments = (
        "-f",
        str(text),
        "-c",
        "64",
        "--decode",
        "20",
        "--expert-cache",
        size,
        "--policy",
        policy,
        "-o",
        str(path),
    )
    assert main(["trace", "demo", "--device", "cuda", *arguments]) == 0
    run = read_run(path)
    assert run.complete
    assert run.answers.max() >= 1
    assert not run.header.weights
    capsys.readouterr()
    assert main(["simulate", "--check", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["equal"]
    assert found["steps"] == run.n_steps
    assert found["decode_hits"] + found["decode_misses"] > 0
