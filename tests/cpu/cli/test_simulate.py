from __future__ import annotations

import json
import re

import numpy as np
import pytest

from hotset.cli.simulate import POLICY_HELP, fractions
from hotset.errors import InputError
from hotset.experts import trace_file
from hotset.experts.trace_file import PhaseCounts, TraceHeader, TraceWriter
from hotset.lab.policies import POLICIES


@pytest.fixture
def picks(tmp_path):
    """A .npz trace of three answers: 90 tokens, 2 layers, 8 experts, 2 picked."""
    rng = np.random.default_rng(0)
    experts = np.array([[rng.permutation(8)[:2] for _ in range(2)] for _ in range(90)], np.uint8)
    np.savez(tmp_path / "picks.npz", experts=experts, offsets=np.array([0, 20, 50, 90]), n_experts=8)
    return tmp_path / "picks.npz"


def test_json_is_a_list_with_an_object_for_every_policy_pool_and_size(call, picks):
    result = call("simulate", picks, "--slots", "25%..100%:25%", "--policy", "lru,belady", "--pool", "all", "--json")
    assert result.code == 0
    found = json.loads(result.out.splitlines()[-1])
    assert len(found) == 4 * 2 * 3
    assert {(o["policy"], o["pool"]) for o in found} == {
        (policy, pool) for policy in ("lru", "belady") for pool in ("layer", "global", "marginal")
    }
    assert sorted({o["slots"] for o in found}) == [0.25, 0.5, 0.75, 1.0]
    for o in found:
        assert 0 <= o["hit_rate"] <= 1
        assert o["byte_hit_rate"] == o["hit_rate"]
        assert o["hit_rate_95"][0] <= o["hit_rate"] <= o["hit_rate_95"][1]
        assert o["regret"] >= 0


def test_a_table_goes_to_stdout_and_the_cliff_to_stderr(call, picks):
    result = call("simulate", picks, "--slots", "12.5%,50%", "--policy", "lru")
    head = [cell.strip() for cell in result.out.splitlines()[0].strip("|").split("|")]
    assert head == ["policy", "pool", "slots", "hit rate", "95 %", "below belady", "note"]
    assert result.out.count("below one token's demand") == 1
    assert "a token needs 2 of a layer's 8 experts; under 25.0 %" in result.err
    assert "90 tokens of 3 answers" in result.err
    assert "replaying 1 policy in 1 pool at 2 sizes" in result.err


def test_columns_that_would_say_nothing_are_left_out_and_lines_fit_a_terminal(call, tmp_path):
    run_file(tmp_path / "t", 1)
    result = call("simulate", tmp_path / "t", "--slots", "50%", "--policy", "all")
    lines = result.out.splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")][3:] == [
        "hit rate",
        "byte hits",
        "fetched/token",
        "below belady",
    ]
    assert max(map(len, lines)) <= 100
    assert "5 decoded tokens of 1 answer;" in result.err
    assert "intervals need at least two answers" in result.err


def test_the_help_names_every_policy():
    assert [name for name in POLICIES if not re.search(rf"[ :]{name}\b", POLICY_HELP)] == []


def test_a_run_that_was_cut_off_is_replayed_and_said_to_be(call, tmp_path):
    run_file(tmp_path / "t", 1)
    assert "cut off" not in call("simulate", tmp_path / "t", "--policy", "lru").err
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-20])
    result = call("simulate", tmp_path / "t", "--policy", "lru")
    assert result.code == 0
    assert "the run was cut off after 5 steps" in result.err
    assert "5 decoded tokens of 1 answer" in result.err


def test_the_first_tokens_alone_may_be_replayed(call, picks):
    assert "30 tokens of 2 answers" in call("simulate", picks, "--first", "30").err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--policy", "mru"], "policy 'mru' is unknown"),
        (["--pool", "heap"], "pool 'heap' is unknown"),
        (["--slots", "9slots"], "give percent of a layer's 8 experts"),
        (["--slots", "1GiB"], "give percent of a layer's 8 experts"),
        (["--slots", "x"], "--slots 'x': give percent"),
        (["--slots", "200%"], "--slots '200%': give percent"),
        (["--phase", "prompt"], "leave --phase out"),
        (["--experts", "8"], "leave --experts out"),
        (["--slots", "50%..10%"], "write it upwards"),
        (["--slots", "10%..50%:0%"], "write it upwards"),
        (["--slots", "0%..100%:0.001%"], "more than 256 sizes"),
        (["--first", "0"], "at least 1 token"),
        (["--phase", "both"], "is not one of prompt, decode"),
        (["--check"], "is no hotset trace"),
    ],
)
def test_what_cannot_be_done_is_said(call, picks, args, message):
    result = call("simulate", picks, *args)
    assert result.code == 1
    assert message in result.err


def test_sizes_are_lists_and_ranges():
    assert [float(f) for f in fractions("5%..100%", 64)] == pytest.approx([i / 20 for i in range(1, 21)])
    assert fractions("10%-50%+20%, 8slots-32slots*2", 64) == fractions("10%..50%:20%, 8slots,16slots,32slots", 64)
    assert [float(f) for f in fractions("16slots, 50%,10%..20%:5%", 64)] == [0.1, 0.15, 0.2, 0.25, 0.5]
    with pytest.raises(InputError, match="give percent"):
        fractions("25%,", 64)


def test_plots_and_report_are_written(call, picks, tmp_path):
    pytest.importorskip("matplotlib")
    result = call(
        "simulate", picks, "--pool", "layer,global", "--plots", tmp_path / "plots", "--report", tmp_path / "r.html"
    )
    assert result.code == 0
    assert f"written: {tmp_path / 'plots'}, {tmp_path / 'r.html'}" in result.err
    images = sorted((tmp_path / "plots").iterdir())
    assert [p.name for p in images] == ["heat.png", "hit-rates.png", "needs.png", "reuse.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in images)
    page = (tmp_path / "r.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert page.count("<tr>") == 1 + 2 * 2 * 3
    assert "http" not in page


@pytest.mark.parametrize("option", ["--plots", "--report"])
def test_a_place_that_cannot_be_written_is_said_before_the_replay(call, picks, tmp_path, option):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    result = call("simulate", picks, option, tmp_path / "file" / "x")
    assert (result.code, "can be written" in result.err, "replaying" in result.err) == (1, True, False)


def test_without_matplotlib_the_extra_is_named(call, picks, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = call("simulate", picks, "--plots", tmp_path / "plots")
    assert (result.code, "pip install 'hotset[plots]'" in result.err) == (1, True)
    assert "replaying" not in result.err


def run_file(path, hits):
    header = TraceHeader("m", "a", "00", "test", "lru", (256,), (4,), (2,), k=1, max_rows=1, weights=False)
    with TraceWriter(path, header) as writer:
        writer.answer(1)
        for e in (0, 1, 0, 2, 1):
            writer.step("decode", np.array([[[e]]]))
        if hits is not None:
            counts = PhaseCounts((hits,), (5 - hits,), (0,), 256 * (5 - hits))
            writer.counts({"prompt": PhaseCounts((0,), (0,), (0,), 0), "decode": counts})


def test_a_check_says_that_simulated_is_live(call, tmp_path):
    run_file(tmp_path / "t", 1)
    result = call("simulate", "--check", tmp_path / "t", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert (found["equal"], found["steps"], found["decode_hits"], found["decode_bytes_fetched"]) == (True, 5, 1, 1024)
    assert "simulated = live: 5 steps" in call("simulate", "--check", tmp_path / "t").out


def test_a_check_that_fails_says_where(call, tmp_path):
    run_file(tmp_path / "t", 2)
    result = call("simulate", "--check", tmp_path / "t")
    assert result.code == 1
    assert "decode hits: engine 2, simulated otherwise: (1,)" in result.err
    assert "does not count what the engine counted" in result.err


def test_a_check_needs_counters(call, tmp_path):
    run_file(tmp_path / "t", None)
    result = call("simulate", "--check", tmp_path / "t")
    assert (result.code, "holds no counters" in result.err) == (1, True)


def test_a_run_that_was_cut_off_is_checked_up_to_its_last_counters(call, tmp_path):
    run_file(tmp_path / "t", 1)
    content = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(content[: -trace_file.FRAME.size - trace_file.CHECKSUM.size])
    result = call("simulate", "--check", tmp_path / "t")
    assert (result.code, "was cut off" in result.err) == (0, True)
