from __future__ import annotations

import csv
import io
import json

import pytest

from fakes import fake_engine

ARGS = ("-p", "16", "-n", "4", "-r", "2")


@pytest.fixture(autouse=True)
def known_memory(monkeypatch):
    monkeypatch.setattr("hotset.cli.bench.memory_rate", lambda _threads: 1e9)


def test_the_table_has_llama_benchs_columns_and_ours(call, loaded):
    loaded()
    result = call("bench", "demo", *ARGS)
    head, _, first, second = result.out.splitlines()
    assert head == "| model | size | params | backend | test | t/s | hit rate | MiB/token | policy | of ceiling |"
    assert "| qwen3moe demo-moe | 7.48 MiB | 11.72 M | CPU | pp16 |" in first
    assert "| tg4 |" in second
    assert "75.0 %" in second


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
    rows = list(csv.DictReader(io.StringIO(call("bench", "demo", *ARGS, "-o", "csv").out)))
    assert [row["test"] for row in rows] == ["pp16", "tg4"]
    assert float(rows[1]["hit_rate"]) == 0.75


def test_lists_are_swept_and_get_columns(call, loaded):
    engine = loaded()
    result = call("bench", "demo", *ARGS, "--expert-cache", "25%,50%", "-t", "1,2")
    lines = result.out.splitlines()
    assert "| threads | cache | test |" in lines[0]
    assert len(lines) == 2 + 2 * 2 * 2
    assert engine.load_arguments["expert_cache"] == "50%"


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
