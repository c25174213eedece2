"""Loading: what cannot be loaded is named with a way out, before memory is taken."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import hotset
from hotset.engine.loading import LoadOptions
from hotset.errors import FileError, InputError, PlacementError, UnsupportedError
from hotset.experts import bank
from hotset.gguf import GGUFWriter
from samples import TinyMoE


def load(model, **options):
    return hotset.load(model, device="cpu", **options)


def test_a_folder_is_named_as_one(tmp_path):
    with pytest.raises(FileError, match=r"model: is a folder; name the \.gguf file in it"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["absent.gguf", "folder/absent.gguf", "/no/such/model", "a/b/c"])
def test_a_file_that_is_not_there_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileError, match=rf'{name}: model: there is no such file; .*user/repo, or "demo" for the bundled model'
    ):
        load(name)


@pytest.mark.parametrize("data", [b"", b"GG", b"not a model at all" * 10])
def test_a_file_of_another_kind_is_refused(data, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"model\.gguf"):
        load(path)


def test_a_model_cut_short_is_refused(tmp_path):
    path = TinyMoE().write(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(FileError, match=r"tiny\.gguf"):
        load(path)


def test_another_architecture_is_unsupported(tmp_path):
    writer = GGUFWriter(tmp_path / "other.gguf", "unheard-of")
    writer.tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    writer.write()
    with pytest.raises(
        UnsupportedError, match=r"general\.architecture: 'unheard-of' is not supported; this version runs"
    ):
        load(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' is not one of auto, cuda, cpu"),
        ({"expert_cache": "lots"}, "expert cache 'lots' is no size"),
        ({"expert_cache": "101%"}, "expert cache '101%' is no size"),
        ({"policy": "fifo"}, "cache policy 'fifo' is unknown"),
        ({"vram": "much"}, "vram 'much' is no number of bytes"),
        ({"n_ctx": 1}, "at least 2 tokens, not 1"),
        ({"n_ctx": True}, "at least 2 tokens, not True"),
        ({"n_ctx": "4096"}, "at least 2 tokens, not '4096'"),
        ({"threads": 0}, "threads must be 1 to"),
        ({"page_lock": "all"}, "page_lock 'all' is no number of bytes"),
        ({"page_lock": -1}, "page_lock must be a size such as 8GiB, bytes of 0 or more, or off, not -1"),
        ({"page_lock": True}, "page_lock must be a size"),
        ({"record_steps": -1}, "record_steps must be 0 or more"),
    ],
    ids=lambda o: str(o)[:30],
)
def test_an_argument_out_of_range_is_refused_before_the_file_is_opened(options, message):
    with pytest.raises(InputError, match=message):
        hotset.load("absent.gguf", **({"device": "cpu"} | options))


def test_too_little_memory_for_the_experts_is_told_before_any_is_taken(monkeypatch):
    def refuse(*_arguments):
        raise AssertionError("memory was taken")

    monkeypatch.setattr(bank, "available_bytes", lambda: 100 << 20)
    monkeypatch.setattr(bank.mmap, "mmap", refuse)
    with pytest.raises(
        PlacementError, match=r"the experts need 0\.\d GiB of host memory and 0\.1 GiB are available; close"
    ):
        load("demo")


def test_a_context_that_memory_cannot_hold_is_told(fresh):
    with pytest.raises(PlacementError, match=r"10000000000 tokens need .* GiB are available; lower --ctx-size"):
        fresh(n_ctx=10**10).generate([5, 6], max_tokens=1)


def test_progress_of_every_stage_goes_up_to_its_whole(fresh):
    seen: dict[str, list[tuple[int, int]]] = {}
    fresh(progress=lambda stage, done, total: seen.setdefault(stage, []).append((done, total)))
    assert len(seen["experts"]) == 18  # every role of every layer
    for steps in seen.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


def test_a_split_file_loads_by_any_part(tmp_path):
    whole = load(TinyMoE().write(tmp_path / "whole.gguf")).logits([1, 2, 3])
    TinyMoE().write(tmp_path / "tiny.gguf", split=3)
    for part in (1, 2, 3):
        found = load(tmp_path / f"tiny-0000{part}-of-00003.gguf").logits([1, 2, 3])
        assert (found == whole).all()


def test_the_memory_table_says_where_things_lie(demo):
    rows = {row.name: row for row in demo.memory.rows}
    assert rows.keys() == {"weights", "experts", "KV cache"}
    assert rows["experts"].n_bytes == demo.runner.model.bank.n_bytes
    assert rows["KV cache"].n_bytes == 2 * 6 * 2 * 64 * 2048 * 2
    assert demo.memory.total("gpu") == 0


@pytest.mark.parametrize("name", ["n_ubatch", "record_steps"])
@pytest.mark.parametrize("value", ["64", True, 64.5, -1])
def test_counts_of_the_wrong_kind_are_told(name, value):
    with pytest.raises(InputError, match=name):
        hotset.load("demo", device="cpu", **{name: value})


@pytest.mark.parametrize(
    ("has", "why"), [(False, "tensor cores cannot be used"), (True, "do not know this kind of model")]
)
def test_prompts_that_run_eight_tokens_at_a_time_are_told_with_the_reason(monkeypatch, has, why):
    from hotset.engine import device_loading

    monkeypatch.setattr(device_loading, "has_tensor_cores", lambda _: has)
    slow = SimpleNamespace(chunks=None, model=SimpleNamespace(device="cuda"))
    (note,) = device_loading.prompt_notes(slow)
    assert "eight tokens at a time" in note
    assert why in note
    assert device_loading.prompt_notes(SimpleNamespace(chunks=object())) == []


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_what_the_gpu_kernels_do_not_know_is_an_error_or_a_note(monkeypatch, device):
    from hotset.engine import loading

    monkeypatch.setattr(loading, "choose_device", lambda _: ("cuda", []))
    monkeypatch.setattr(loading, "missing_on_device", lambda _: ["experts without a gate"])
    if device == "cuda":
        with pytest.raises(UnsupportedError, match="qwen3moe: the GPU kernels do not know experts without a gate yet"):
            hotset.load("demo", device=device)
    else:
        model = hotset.load("demo", device=device)
        assert model.device == "cpu"
        assert list(model.notes) == ["running on the CPU: the GPU kernels do not know experts without a gate yet"]


def test_keys_and_values_in_q8_0_take_about_half_and_stay_close(demo, fresh, some_tokens):
    tokens = some_tokens(60)
    half = demo.logits(tokens)
    for k, v, share in (("q8_0", "q8_0", 34 / 64), ("q8_0", "f16", 98 / 128), ("f16", "q8_0", 98 / 128)):
        model = fresh(cache_type_k=k, cache_type_v=v)
        assert model.memory.bytes_of("KV cache") == demo.memory.bytes_of("KV cache") * share
        found = model.logits(tokens)
        # As far as int8 activations are from float ones, through which a small change spreads.
        errors = np.linalg.norm(found - half, axis=1) / np.linalg.norm(half, axis=1)
        assert 0 < np.median(errors) <= 0.03
        assert np.array_equal(found, model.logits(tokens, stepwise=True))
        assert np.array_equal(model.logits(tokens[:20], mode="reference"), demo.logits(tokens[:20], mode="reference"))


def test_a_session_over_q8_0_generates_and_reuses(fresh, some_tokens):
    model, prompt = fresh(cache_type_k="q8_0", cache_type_v="q8_0"), some_tokens(30)
    session = model.session()
    first = model.generate(prompt, session=session, max_tokens=4, seed=1)
    again = model.generate(prompt, session=session, max_tokens=4, seed=1)
    assert again.reused_tokens == 29
    assert again.tokens == first.tokens


@pytest.mark.parametrize(("name", "short"), [("cache_type_k", "-ctk"), ("cache_type_v", "-ctv")])
def test_other_types_of_keys_and_values_are_told(name, short):
    with pytest.raises(InputError, match=rf"{name} \({short}\) 'q4_0' is not one of f16, q8_0"):
        load("demo", **{name: "q4_0"})


def test_heads_that_are_no_blocks_of_32_are_told(tmp_path):
    path = TinyMoE(d_head=40).write(tmp_path / "tiny.gguf")
    with pytest.raises(InputError, match=r"multiple of 32 values, and tiny has some of 40; leave .* at f16"):
        load(path, cache_type_v="q8_0")
    assert load(path).logits([1, 2]).shape == (2, 50)


@pytest.mark.parametrize(
    ("given", "n_bytes"), [(None, None), (0, 0), (5000, 5000), ("off", 0), (" OFF ", 0), ("3GiB", 3 << 30)]
)
def test_how_much_may_be_page_locked_is_read(given, n_bytes):
    assert LoadOptions(page_lock=given).page_lock_bytes == n_bytes
