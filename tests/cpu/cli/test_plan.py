from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hotset.engine.loading import resolve
from hotset.plan.hardware import keep_machine, machine_key, machine_path
from hub_stub import Hub, serving
from machines import WITH_GPU, WITHOUT_GPU
from samples import TinyMoE


@pytest.fixture(autouse=True)
def no_gpu_and_own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOTSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("hotset.plan.hardware.gpus", list)
    monkeypatch.setattr("hotset.cli.plan.free_vram", lambda: None)


@pytest.fixture
def hub(monkeypatch):
    with serving(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def model(tmp_path) -> Path:
    return TinyMoE(n_layers=2, d_model=256, d_expert=256, n_experts=16, n_picks=2).write(tmp_path / "m-Q4_K_M.gguf")


def test_a_plan_for_a_card_says_where_what_goes(call, model):
    result = call("plan", model, "--vram", "1GiB", "-c", "512", "--expert-cache", "25%")
    assert result.code == 0
    for text in (
        "slots (gpu)",
        "4 of 16 experts per layer",
        "experts (host)",
        "hit rate",
        "decode",
        "<- the knee",
        "smallest card",
    ):
        assert text in result.out
    assert "assumed: PCIe 4 x16" in result.out
    assert "run `hotset doctor` once" in result.err


def test_every_line_of_a_plan_fits_a_terminal(call, model):
    out = call("plan", model, "--vram", "1GiB", "-c", "512", "--expert-cache", "25%", "--policy", "lru").out
    assert max(map(len, out.splitlines())) <= 110
    assert "under lrfu:16; give --trace for lru" in out
    assert "40 % either way for the step itself" in out


def test_sizes_that_the_budget_has_no_room_for_are_marked(call, model):
    budget = json.loads(call("plan", model, "--vram", "4GiB", "--json").out)["points"][5]["vram_bytes"]
    lines = call("plan", model, "--vram", f"{budget}B").out.splitlines()
    sizes = [line.endswith("more than allowed") for line in lines if "%)" in line]
    assert sizes == sorted(sizes)
    assert any(sizes)
    assert not all(sizes)
    assert "100 %: every expert has a slot" in call("plan", model, "--vram", "4GiB").out


def test_json_holds_the_same_and_nothing_else_is_printed(call, model):
    value = json.loads(call("plan", model, "--vram", "1GiB", "--expert-cache", "25%", "--json").out)
    assert value["n_slots"] == [4, 4]
    assert value["hit_rate"]["low"] < value["hit_rate"]["expected"] < value["hit_rate"]["high"]
    assert value["tokens_per_s"]["low"] < value["tokens_per_s"]["expected"] < value["tokens_per_s"]["high"]
    assert sum(row["bytes"] for row in value["memory"] if row["where"] == "gpu") <= value["vram_bytes"] == 1 << 30
    assert not value["measured"]
    assert value["points"][-1]["hit_rate"] == 1


def test_without_a_gpu_the_cpu_is_planned_from_its_measured_memory(call, model):
    first = call("plan", model)
    assert "no forecast" in first.out
    assert "give --vram, as in --vram 12GiB, to plan for a card" in first.err
    keep_machine(WITHOUT_GPU)
    result = call("plan", model, "--json")
    value = json.loads(result.out)
    assert (value["device"], value["measured"], value["n_slots"]) == ("cpu", True, [0, 0])
    assert value["tokens_per_s"]["expected"] > 0


def test_a_slower_bus_makes_it_slower(call, model):
    def speed(bus):
        return json.loads(call("plan", model, "--vram", "1GiB", "--expert-cache", "25%", "--bus", bus, "--json").out)[
            "tokens_per_s"
        ]

    assert speed("1")["expected"] < speed("20")["expected"]


def test_measured_figures_take_the_place_of_assumptions(call, model):
    keep_machine(WITH_GPU)
    result = call("plan", model, "--vram", "1GiB")
    assert "measured on a card" in result.out
    assert "hotset doctor" not in result.err


@pytest.mark.parametrize("policy", ["lrfu:16", "product"])
def test_a_trace_is_replayed_for_the_hit_rate(call, model, policy, tmp_path):
    rng = np.random.default_rng(0)
    experts = np.argsort(rng.random((300, 2, 16)), axis=-1)[..., :2].astype(np.int16)
    np.savez(tmp_path / "t.npz", experts=experts, offsets=np.array([0, 100, 300]), n_experts=np.array(16))
    args = ("plan", model, "--vram", "1GiB", "--expert-cache", "50%", "--trace", tmp_path / "t.npz", "--policy", policy)
    value = json.loads(call(*args, "--json").out)
    assert value["hit_rate"]["source"] == "replay of t.npz"
    assert value["hit_rate"]["expected"] == pytest.approx(0.5, abs=0.05)
    refused = call("plan", "demo", "--vram", "1GiB", "--trace", tmp_path / "t.npz")
    assert refused.code == 1
    assert "the trace t.npz is of 2 layers with 16 experts" in refused.err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--vram", "1MiB"), "without a single expert"),
        (("--vram", "much"), "--vram 'much' is no number of bytes"),
        (("--bus", "fast"), "--bus 'fast'"),
        (("--vram", "1GiB", "-c", "1"), "at least 2 tokens"),
        (("--policy", "best"), "policy 'best' is unknown"),
    ],
)
def test_what_makes_no_sense_is_an_error(call, model, args, text):
    result = call("plan", model, *args)
    assert result.code == 1
    assert text in result.err


def test_a_file_on_the_hub_is_planned_before_it_is_downloaded(call, hub):
    data = resolve("demo").read_bytes()
    hub.repos["user/model"] = {"demo-Q4_K_M.gguf": data, "demo-Q8_0.gguf": b"not asked for"}
    result = call("plan", "user/model:Q4_K_M", "--vram", "1GiB", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["name"] == "demo-moe"
    assert hub.sent <= len(data) / 10
    assert "nothing else was downloaded" in result.err


def test_a_split_model_on_the_hub_takes_the_headers_of_all_parts(call, hub, tmp_path):
    tiny = TinyMoE(n_layers=2)
    whole = tiny.write(tmp_path / "whole.gguf")
    tiny.write(tmp_path / "m.gguf", split=3)
    hub.repos["user/model"] = {p.name: p.read_bytes() for p in tmp_path.glob("m-*.gguf")}
    remote = json.loads(call("plan", "-hf", "user/model", "--vram", "1GiB", "--json").out)
    local = json.loads(call("plan", whole, "--vram", "1GiB", "--json").out)
    named = {"model": "", "name": ""}
    assert remote | named == local | named


def test_a_url_is_planned_too(call, hub, model):
    hub.repos["user/model"] = {"m.gguf": model.read_bytes()}
    result = call("plan", f"{hub.url}/user/model/resolve/main/m.gguf", "--vram", "1GiB")
    assert result.code == 0, result.err
    assert "16 in each of 2 layers" in result.out


def test_a_checkpoint_on_the_hub_is_named_as_what_it_is(call, hub):
    hub.repos["user/model"] = {"config.json": b"{}", "model.safetensors": b"x"}
    result = call("plan", "-hf", "user/model")
    assert result.code == 1
    assert "it is a checkpoint" in result.err


def test_doctor_measures_once_and_again_on_demand(call, monkeypatch):
    calls = []
    monkeypatch.setattr("hotset.plan.measure.measure_machine", lambda _progress: calls.append(1) or WITHOUT_GPU)
    first = call("doctor")
    assert "GB/s" in first.out
    assert "not measured: GPU" in first.out
    assert call("doctor").out == first.out
    assert len(calls) == 1
    assert json.loads(call("doctor", "--again", "--json").out)["dram"] == {"1": 10e9, "2": 20e9}
    assert len(calls) == 2


def test_doctor_says_that_other_programs_spoil_its_figures(call, monkeypatch):
    monkeypatch.setattr("hotset.plan.measure.measure_machine", lambda _progress: WITHOUT_GPU)
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    assert "other programs are running (load 99.0 on" in call("doctor", "--again").err
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert "other programs" not in call("doctor", "--again").err


def test_doctor_says_where_figures_cannot_be_kept(call, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOTSET_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("hotset.plan.measure.measure_machine", lambda _progress: WITHOUT_GPU)
    result = call("doctor")
    assert result.code == 0
    assert "cannot be kept" in result.err


def test_doctor_shows_a_gpu_and_a_link_that_is_slower_than_it_could_be(call):
    keep_machine(WITH_GPU)
    out = call("doctor").out
    assert "PCIe 3 x16, though card and slot allow PCIe 4 x16" in out
    assert "4.00 GiB of 8.00 GiB tried" in out
    assert "64 KiB 4.0, 1 MiB 16.0, 16 MiB 24.0" in out
    assert machine_path(machine_key()).exists()
