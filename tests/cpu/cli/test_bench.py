from __future__ import annotations

import csv
import io
import json

import pytest

from fakes import fake_engine
from hotset.cli.options import spread
from hotset.errors import InputError
from machines import WITHOUT_GPU

ARGS = ("-p", "16", "-n", "4", "-r", "2")


@pytest.fixture(autouse=True)
def known_memory(monkeypatch):
    monkeypatch.setattr("hotset.cli.measuring.memory_rate", lambda _threads: 1e9)
    monkeypatch.setattr("hotset.plan.hardware.known_machine", lambda: None)


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_table_has_llama_benchs_columns_and_ours(call, loaded):
    loaded()
    result = call("bench", "demo", *ARGS)
    head, _, first, second, last = result.out.splitlines()
    assert cells(head) == (
        ["model", "size", "params", "backend", "test", "t/s", "first t/s", "hit rate", "MiB/token", "cores", "policy", "ceiling", "of ceiling"]
    )  # fmt: skip
    assert [row["test"] for row in json.loads(last)] == ["pp16", "tg4"]
    assert cells(first)[:5] == ["qwen3moe demo-moe", "7.48 MiB", "11.72 M", "CPU", "pp16"]
    assert cells(second)[4] == "tg4"
    assert "75.0 %" in second
    assert len(head) == len(first) == len(second)


def test_a_measured_machine_adds_a_forecast(call, loaded, monkeypatch):
    monkeypatch.setattr("hotset.plan.hardware.known_machine", lambda: WITHOUT_GPU)
    loaded()
    result = call("bench", "demo", *ARGS)
    head, *_, last = result.out.splitlines()
    assert cells(head)[-2:] == ["of ceiling", "forecast"]
    prompt, decode = json.loads(last)
    assert prompt["forecast_tokens_per_s"] is None
    assert decode["forecast_error"] == pytest.approx(decode["forecast_tokens_per_s"] / decode["tokens_per_s"] - 1)
    assert "forecast of tg4:" in result.err
    assert "t/s from the rate at which memory is read" in result.err
    assert "off what was measured" in result.err
    assert "no forecast" not in result.err


def test_the_card_comes_before_the_results_on_stderr(call, loaded):
    loaded()
    text = call("bench", "demo", *ARGS).err
    assert "a token reads 2.41 MiB of weights" in text
    assert "measured now: 1.0 GB/s" in text
    assert text.index("a token reads") < text.index("warm-up") < text.index("tg4: first run on an empty expert cache")


def test_json_is_the_last_line(call, loaded):
    loaded()
    lines = call("bench", "demo", *ARGS, "--json").out.splitlines()
    value = json.loads(lines[-1])
    assert [row["test"] for row in value] == ["pp16", "tg4"]
    assert value[1]["read_rate"] == 1e9
    assert lines[0].startswith("| model")


def test_json_form_is_nothing_but_json(call, loaded):
    loaded()
    assert len(json.loads(call("bench", "demo", *ARGS, "-o", "json").out)) == 2


def test_jsonl_form_is_one_value_a_line(call, loaded):
    loaded()
    lines = call("bench", "demo", *ARGS, "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["pp", "tg"]


def test_csv_form_can_be_read_back(call, loaded):
    loaded()
    *table, last = call("bench", "demo", *ARGS, "-o", "csv").out.splitlines(keepends=True)
    rows = list(csv.DictReader(io.StringIO("".join(table))))
    assert [facts["kind"] for facts in json.loads(last)] == ["pp", "tg"]
    assert [row["test"] for row in rows] == ["pp16", "tg4"]
    assert float(rows[1]["hit_rate"]) == 0.75


def test_lists_are_arms_on_one_loaded_model_and_get_columns(call, loaded):
    engine = loaded()
    result = call("bench", "demo", *ARGS, "--expert-cache", "25%,50%", "--policy", "lru,static", "-t", "1,2")
    lines = result.out.splitlines()
    assert cells(lines[0])[4:7] == ["threads", "cache", "test"]
    assert len(lines) == 2 + 2 * 2 * 2 * 2 + 1
    assert engine.load_arguments["expert_cache"] == "off"
    assert [twin.shape.n_slots[0] for twin in engine.runner.twins] == [8, 8, 8, 8, 16, 16, 16, 16]
    assert result.err.startswith("expert caches, measured side by side: 25% lru, 25% static, 50% lru, 50% static")
    assert "8 arms, side by side, in an order that turns with every repetition" in result.err


def test_lengths_may_be_lists_as_in_llama_bench(call, loaded):
    loaded()
    rows = json.loads(call("bench", "demo", "-p", "8,16", "-n", "2-8*2", "-r", "1", "-o", "json").out)
    assert [row["test"] for row in rows] == ["pp8", "pp16", "tg2", "tg4", "tg8"]
    refused = call("bench", "demo", "-p", "many")
    assert (refused.code, "-p 'many' is no list of numbers" in refused.err) == (1, True)


def test_what_was_measured_before_an_interruption_is_shown(call, loaded):
    engine = loaded()
    fed = []

    def feed(n):
        fed.append(n)
        if len(fed) > 5:
            raise KeyboardInterrupt

    engine.runner.on_feed = feed
    result = call("bench", "demo", *ARGS)
    assert result.code == 130
    assert [row["test"] for row in json.loads(result.out.splitlines()[-1])] == ["pp16"]
    assert result.err.splitlines()[-1] == "interrupted"


def test_one_arm_is_the_model_as_loaded(call, loaded):
    engine = loaded()
    call("bench", "demo", *ARGS, "--expert-cache", "10%", "--policy", "lfu")
    assert (engine.load_arguments["expert_cache"], engine.load_arguments["policy"]) == ("10%", "lfu")
    assert not engine.runner.twins


def test_the_verdict_comes_last_and_is_in_the_json(call, loaded):
    loaded()
    result = call("bench", "demo", *ARGS, "--expert-cache", "25%,off", "-o", "json")
    cached, off = result.err.splitlines()[-2:]
    assert cached.startswith("verdict on tg4, 25%: 8 of 32 experts per layer, lrfu:16 (counted): counted only")
    assert off.startswith("verdict on tg4, off: bound by")
    rows = json.loads(result.out)
    assert [bool(row["verdict"]) for row in rows] == [False, False, True, True]


def test_arms_that_differ_in_threads_alone_are_told_apart(call, loaded):
    loaded()
    text = call("bench", "demo", *ARGS, "-t", "1,2").err
    for name in (
        "warm-up (compiling, first touch of memory), 1 thread, not",
        "tg4, 2 threads: first",
        "tg4, 1 thread: counted",
    ):
        assert name in text


def test_without_kept_figures_the_way_to_a_forecast_is_named(call, loaded, monkeypatch):
    loaded()
    assert (
        "no forecast: this machine was not measured yet: run `hotset doctor` once" in call("bench", "demo", *ARGS).err
    )
    assert "no forecast" not in call("bench", "demo", "-p", "16", "-n", "0").err


def test_routing_replaces_the_picks_of_decoding(call, loaded):
    engine = loaded()
    result = call("bench", "demo", *ARGS, "--routing", "repeat", "-o", "json")
    assert [row["routing"] for row in json.loads(result.out)] == ["repeat", "repeat"]
    assert engine.runner.routing.shape == (1, 6, 4)
    assert "begin at 0" in engine.runner.calls


def test_a_trace_of_other_counts_is_refused_before_loading(call, loaded, shared):
    engine = loaded()
    result = call("bench", "demo", *ARGS, "--routing", shared / "traces/olmoe-1b-7b.decode.npz")
    assert result.code == 1
    assert "16 layers of 64 experts, 8 picked" in result.err
    assert "6 layers of 32 experts, 4 picked" in result.err
    assert not engine.load_arguments


@pytest.mark.parametrize("factor", ["0", "2"])
def test_a_bus_factor_is_an_error_on_the_cpu(call, loaded, factor):
    loaded()
    result = call("bench", "demo", *ARGS, "--bus-factor", factor)
    assert result.code == 1
    assert "bus" in result.err


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("10%,25%", ["10%", "25%"]),
        ("10%-50%+20%", ["10%", "30%", "50%"]),
        ("8slots-40slots*2", ["8slots", "16slots", "32slots"]),
        ("1-3,off", ["1", "2", "3", "off"]),
        ("10%..50%:20%,lrfu:16", ["10%", "30%", "50%", "lrfu:16"]),
        ("25%, 25%", ["25%"]),
    ],
)
def test_ranges_are_written_as_in_llama_bench(text, values):
    assert spread(text, "--x") == values


@pytest.mark.parametrize("text", ["5-1", "1-5+0", "1-5*1", "0-5*2", "1%-5", "1-1000", "1%-5%+1slots"])
def test_ranges_that_lead_nowhere_are_errors(text):
    with pytest.raises(InputError):
        spread(text, "--x")


def test_a_text_shorter_than_the_prompt_is_said_to_repeat(call, loaded, tmp_path):
    loaded()
    path = tmp_path / "short.txt"
    path.write_text("a few words")
    assert "prompts repeat it" in call("bench", "demo", *ARGS, "-f", path).err
    assert "prompts repeat it" not in call("bench", "demo", *ARGS).err


def test_a_model_without_a_tokenizer_gets_random_ids_and_that_is_said_loudly(call, loaded):
    loaded(fake_engine(tokenizer=False))
    result = call("bench", "demo", *ARGS)
    assert result.code == 0
    assert "WARNING: the model has no tokenizer" in result.err


def test_an_empty_text_is_an_error(call, loaded, tmp_path):
    loaded()
    path = tmp_path / "empty.txt"
    path.write_text("")
    result = call("bench", "demo", *ARGS, "-f", path)
    assert result.code == 1
    assert "no tokens" in result.err
