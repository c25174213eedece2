"""What the server tells of itself: tokens, prompts, lanes, counts, and the map of the expert cache, whose size changes while it answers."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from hotset.errors import PlacementError
from hotset.experts.stats import Prefetched


def test_text_becomes_tokens_and_text_again(demo):
    text = "naïve 🦙 text <|endoftext|>\n"
    ids = demo.post("/tokenize", {"content": text})["tokens"]
    assert ids == demo.scheduler.engine.tokenize(text, add_special=False)
    assert demo.post("/detokenize", {"tokens": ids})["content"] == text
    pieces = demo.post("/tokenize", {"content": "🦙", "with_pieces": True})["tokens"]
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert raw.decode() == "🦙"
    assert demo.post("/tokenize", {"content": ""})["tokens"] == []


@pytest.mark.parametrize("tokens", [[-1], [10**9], [2**70], ["1"], [None], [1.0]])
def test_ids_that_are_none_have_no_text(demo, tokens):
    demo.post("/detokenize", {"tokens": tokens}, status=400)


def test_a_conversation_becomes_a_prompt(with_template):
    prompt = with_template("Qwen-Qwen3-0.6B").post(
        "/apply-template", {"messages": [{"role": "user", "content": "Hi"}]}
    )["prompt"]
    assert prompt.startswith("<|im_start|>user\nHi<|im_end|>")
    assert prompt.endswith("<|im_start|>assistant\n")


def test_props_tell_the_context_of_a_request_and_no_path(demo):
    props = demo.get("/props")
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["total_slots"] == 4
    assert "/" not in props["model_alias"]


def test_lanes_tell_what_they_do_and_nothing_of_what_is_said(demo):
    said = "something that only this test says"
    demo.post("/v1/completions", {"prompt": said, "max_tokens": 3})
    lanes = demo.get("/slots")
    assert len(lanes) == 4
    assert said not in str(lanes)
    assert any(lane["n_held"] > 0 for lane in lanes)


def test_counts_go_up_by_what_was_done(demo):
    def counts() -> dict[str, float]:
        status, headers, body = demo.request("GET", "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    before = counts()
    usage = demo.post("/v1/completions", {"prompt": "Counting tokens here", "max_tokens": 9})["usage"]
    after = counts()
    gained = {name: after[name] - before[name] for name in after}
    assert gained["hotset_generated_tokens_total"] == usage["completion_tokens"]
    computed = gained["hotset_prompt_tokens_total"] + gained["hotset_cached_tokens_total"]
    assert computed == usage["prompt_tokens"]
    assert gained['hotset_requests_total{end="finished"}'] == 1
    layer = '{layer="0",phase="decode"}'
    assert gained[f"hotset_expert_hits_total{layer}"] + gained[f"hotset_expert_misses_total{layer}"] > 0
    assert after["hotset_requests_running"] == 0
    layers = demo.get("/v1/experts")["layers"]
    for i, layer in enumerate(layers):
        assert after[f'hotset_expert_slots{{layer="{i}"}}'] == layer["n_slots"]
        assert after[f'hotset_expert_resident{{layer="{i}"}}'] == len(layer["resident"]) > 0
    inactive = [name for name in after if name.startswith("hotset_expert_cache_active")]
    assert [after[name] for name in inactive] == [0]
    assert 'policy="lrfu:16"' in inactive[0]
    assert "host memory" in inactive[0]
    assert after['hotset_memory_bytes{name="KV cache",where="host"}'] > 0


def test_the_map_shows_every_layer_and_what_was_picked_since(demo):
    step = demo.get("/v1/experts")["step"]
    demo.post("/v1/completions", {"prompt": "The map", "max_tokens": 5})
    found = demo.get(f"/v1/experts?since={step}")
    config = demo.scheduler.engine.config
    assert found["step"] > step
    assert (found["n_layers"], found["n_experts"]) == (config.n_layers, config.n_experts)
    assert len(found["layers"]) == config.n_layers
    for layer in found["layers"]:
        assert len(layer["heat"]) == config.n_experts
        assert all(0 <= heat <= 100 for heat in layer["heat"])
        assert len(layer["resident"]) <= layer["n_slots"]
        assert len(layer["picked"]) >= config.n_picks
    assert all(layer["picked"] == [] for layer in demo.get(f"/v1/experts?since={found['step']}")["layers"])


@pytest.mark.parametrize("since", ["-1", "x", "9999999999", "1.5", ""])
def test_since_must_be_a_step(demo, since):
    assert demo.request("GET", f"/v1/experts?since={since}")[0] == 400


def test_what_came_before_it_was_picked_is_told(demo, monkeypatch):
    runner = demo.scheduler.engine.runner
    counted = type(runner).stats
    monkeypatch.setattr(type(runner), "stats", lambda self: replace(counted(self), prefetched=Prefetched(5, 7)))
    assert demo.get("/v1/experts")["prefetched"] == {"needed": 5, "in_vain": 7}
    lines = demo.request("GET", "/metrics")[2].decode().splitlines()
    assert 'hotset_prefetched_bytes_total{end="needed"} 5.0' in lines
    assert 'hotset_prefetched_bytes_total{end="in_vain"} 7.0' in lines


def test_the_cache_changes_its_size_under_load_and_no_answer_changes(demo):
    body = {"prompt": "While the cache is resized", "max_tokens": 60, "seed": 3, "temperature": 1.0}
    expected = demo.post("/v1/completions", body)["choices"][0]["text"]
    got = []
    threads = [threading.Thread(target=lambda: got.append(demo.post("/v1/completions", body))) for _ in range(6)]
    for thread in threads:
        thread.start()
    n_experts = demo.scheduler.engine.config.n_experts
    for size, share in (("100%", 1.0), ("10%", 0.1), ("off", 0.0), ("0%", 0.0), ("100%", 1.0), ("25%", 0.25)):
        told = demo.post("/v1/experts/cache", {"size": size})
        assert told["n_slots"] == int(n_experts * share) * told["n_layers"]
    for thread in threads:
        thread.join(60)
    assert [one["choices"][0]["text"] for one in got] == [expected] * 6


@pytest.mark.parametrize("size", ["", "a lot", "101%", "-5%", "1e9GiB", "5", "NaN"])
def test_a_size_that_is_none_is_refused(demo, size):
    before = demo.get("/v1/experts")["n_slots"]
    error = demo.post("/v1/experts/cache", {"size": size}, status=400)["error"]
    assert size in error["message"]
    assert demo.get("/v1/experts")["n_slots"] == before


def test_a_size_that_does_not_fit_is_refused_in_the_engines_words(demo, monkeypatch):
    def resize(_size):
        raise PlacementError("the expert cache asked for needs 9 GiB and 1 GiB are left")

    monkeypatch.setattr(demo.scheduler.engine, "resize_cache", resize)
    error = demo.post("/v1/experts/cache", {"size": "100%"}, status=400)["error"]
    assert error["message"] == "the expert cache asked for needs 9 GiB and 1 GiB are left"


def test_the_page_is_there(demo):
    status, headers, body = demo.request("GET", "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert b"<title>hotset" in body
