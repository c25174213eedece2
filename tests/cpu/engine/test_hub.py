"""Models of Hugging Face by name, against a server on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from hotset.engine import hub as hub_module
from hotset.engine.hub import fetch
from hotset.engine.hub_choice import HubName, chosen
from hotset.engine.loading import resolve
from hotset.errors import FileError, InputError
from hub_stub import COMMIT, Hub, serving
from samples import TinyMoE

SPLIT = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with serving(Hub()) as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        yield stub


@pytest.fixture
def nowhere(monkeypatch):
    """Point to a port where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        yield


def get(name, progress=lambda *_: None):
    return fetch(HubName.parse(name), progress)


@pytest.mark.parametrize(
    ("quant", "files", "expected"),
    [
        (None, ["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"], ["m-Q4_K_M.gguf"]),
        (None, ["m-q2_k.gguf", "m-q8_0.gguf"], ["m-q8_0.gguf"]),
        (None, ["README.md", "m-F16.gguf", "m-Q2_K.gguf"], ["m-F16.gguf"]),
        (None, ["mmproj-Q4_K_M.gguf", "mtp-m-Q4_K_M.gguf", "m.imatrix-Q4_K_M.gguf", "m-Q2_K.gguf"], ["m-Q2_K.gguf"]),
        ("Q8_0", [*SPLIT[::-1], "m-Q4_K_M.gguf"], SPLIT),
        ("q4_k_m", ["m-Q4_K_M.gguf"], ["m-Q4_K_M.gguf"]),
        ("Q4_K", ["m-Q4_K_M.gguf", "m-Q4_K.gguf"], ["m-Q4_K.gguf"]),
        ("UD-Q4_K_XL", ["m-Q4_K_XL.gguf", "m-UD-Q4_K_XL.gguf"], ["m-UD-Q4_K_XL.gguf"]),
        ("BF16", ["BF16/m-BF16-00001-of-00002.gguf"], [f"BF16/m-BF16-0000{n}-of-00002.gguf" for n in (1, 2)]),
    ],
)
def test_the_file_is_chosen_as_llama_cpp_does(quant, files, expected):
    assert expected == chosen(HubName("user/repo", quant), files)


@pytest.mark.parametrize(
    ("quant", "files", "named"),
    [
        ("Q5_K_M", ["m-Q4_K_M.gguf", "m-Q8_0.gguf"], "no file has Q5_K_M in its name; there are m-Q4_K_M.gguf, m-Q8_0.gguf"),
        (None, ["model.safetensors", "mmproj.gguf"], "holds no GGUF file and no checkpoint"),
        ("Q8_0", ["config.json", "model.safetensors"], "holds no GGUF file;"),
        ("Q4.K", ["m-Q4_K.gguf"], "no file has"),
    ],
)  # fmt: skip
def test_a_quant_that_is_not_there_is_named(quant, files, named):
    with pytest.raises(FileError, match=named):
        chosen(HubName("user/repo", quant), files)


@pytest.mark.parametrize(
    "text", ["", "repo", "a/b/c", "/a/b", "a/..", "a/b:", "a/b:c/d", "a b/c", "a/b--c", "../x", "a/b:c:d", "ü/b"]
)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(InputError, match="write user/repo or user/repo:QUANT"):
        resolve(f"hf:{text}")


def test_a_model_is_fetched_once_into_the_shared_cache(hub, tmp_path):
    hub.repos["user/repo"] = {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight bits"}
    path = get("user/repo")

    assert path == tmp_path / f"hub/models--user--repo/snapshots/{COMMIT}/m-Q4_K_M.gguf"
    assert path.read_bytes() == b"four"
    assert get("user/repo") == path
    assert hub.fetched == ["m-Q4_K_M.gguf"]


def test_all_parts_of_a_split_model_are_fetched(hub):
    hub.repos["user/repo"] = {name: name.encode() for name in [*SPLIT, "m-Q4_K_M.gguf"]}
    path = get("user/repo:q8_0")

    assert hub.fetched == SPLIT
    assert sorted(file.name for file in path.parent.iterdir()) == [name.removeprefix("Q8_0/") for name in SPLIT]
    assert path.name == "m-Q8_0-00001-of-00003.gguf"


def test_a_repository_without_gguf_files_is_a_checkpoint(hub):
    wanted = [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "model-1.safetensors",
        "model-2.safetensors",
    ]
    hub.repos["user/repo"] = dict.fromkeys([*wanted, "README.md", "consolidated.safetensors", "onnx/model.onnx"], b"x")
    folder = get("user/repo")

    assert sorted(file.name for file in folder.iterdir()) == sorted(wanted)
    hub.broken = 503
    assert get("user/repo") == folder


def test_a_part_that_is_missing_is_named_before_anything_is_fetched(hub):
    hub.repos["user/repo"] = dict.fromkeys(SPLIT[:2], b"x")

    with pytest.raises(FileError, match=r"m-Q8_0-00003-of-00003\.gguf: is missing"):
        get("user/repo")
    assert hub.fetched == []


def test_progress_counts_the_bytes_of_all_parts(hub):
    hub.repos["user/repo"] = {name: bytes(1000 + n) for n, name in enumerate(SPLIT)}
    seen = []
    get("user/repo", lambda *step: seen.append(step))

    assert {stage for stage, _, _ in seen} == {"download"}
    assert {total for _, _, total in seen} == {3003}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == 3003


def test_the_real_model_loads_by_name(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub.repos["user/tiny"] = {"tiny.gguf": TinyMoE().write(tmp_path / "tiny.gguf").read_bytes()}

    assert resolve("user/tiny").read_bytes() == hub.repos["user/tiny"]["tiny.gguf"]
    (tmp_path / "user").mkdir()
    (tmp_path / "user/tiny").write_bytes(b"a file")
    assert resolve("user/tiny") == Path("user/tiny")
    assert resolve("hf:user/tiny").name == "tiny.gguf"


def test_a_token_opens_a_private_model(hub, monkeypatch):
    hub.repos["user/secret"] = {"m.gguf": b"x"}
    hub.private["user/secret"] = "hf_token"

    with pytest.raises(FileError, match=r"user/secret: model: .*no such model, or it is private; .*HF_TOKEN"):
        get("user/secret")
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    assert get("user/secret").read_bytes() == b"x"


def test_an_unknown_model_is_named(hub):
    with pytest.raises(FileError, match="user/nothing:Q4_0: model: Hugging Face has no such model"):
        get("user/nothing:Q4_0")


def test_a_gated_model_says_how_to_get_in(hub):
    hub.repos["user/gated"] = {"m.gguf": b"x"}
    hub.gated.add("user/gated")

    with pytest.raises(FileError, match="behind a gate; accept its terms"):
        get("user/gated")


def test_without_a_network_the_cache_serves_what_it_has(hub, nowhere, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.repos["user/repo"] = {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight"}
    path = get("user/repo:Q8_0")
    hub.broken = 503

    assert get("user/repo") == get("user/repo:Q8_0") == path
    with pytest.raises(FileError, match=r"cannot be reached.*the cache holds only m-Q8_0\.gguf; connect"):
        get("user/repo:Q4_K_M")


def test_an_incomplete_split_in_the_cache_does_not_do(hub, monkeypatch):
    hub.repos["user/repo"] = {name: name.encode() for name in SPLIT}
    get("user/repo").with_name("m-Q8_0-00002-of-00003.gguf").unlink()
    hub.broken = 500

    with pytest.raises(FileError, match="cannot be reached"):
        get("user/repo")


def test_without_network_and_cache_the_reason_is_said(hub, nowhere):
    with pytest.raises(
        FileError, match=r"user/repo: model: Hugging Face cannot be reached \(.+\), and it is not in the cache; connect"
    ):
        get("user/repo")


def test_offline_mode_asks_nobody(hub, monkeypatch):
    hub.repos["user/repo"] = {"m.gguf": b"x"}
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(FileError, match="offline mode"):
        get("user/repo")
    assert hub.fetched == []


def test_a_refusal_that_is_not_about_the_name_is_passed_on(hub):
    hub.repos["user/repo"] = {"m.gguf": b"x"}
    hub.broken = 418

    with pytest.raises(FileError, match=r"refuses it: .*418"):
        get("user/repo")


def test_a_download_that_breaks_off_can_be_run_again(hub, monkeypatch):
    hub.repos["user/repo"] = {"m.gguf": b"x"}

    def breaks(*_, **__):
        raise OSError("connection lost\nmore words")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", breaks)
    with pytest.raises(FileError, match=r"user/repo: m\.gguf: cannot be fetched: connection lost; run it again"):
        get("user/repo")


def test_the_command_line_takes_the_name_and_the_environment(hub, tmp_path):
    hub.repos["user/tiny"] = {"tiny-Q8_0.gguf": TinyMoE().write(tmp_path / "tiny.gguf").read_bytes()}
    hub.private["user/tiny"] = "hf_token"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_token", "HF_ENDPOINT": hub.url}
    command = [sys.executable, "-m", "hotset", "inspect", "-hf", "user/tiny:Q8_0", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "downloading" in done.stderr
    assert json.loads(done.stdout)
    assert list((tmp_path / "home/hub/models--user--tiny").rglob("tiny-Q8_0.gguf"))


def test_importing_the_module_loads_no_network_library():
    code = f"import sys, {hub_module.__name__}; print('huggingface_hub' in sys.modules)"

    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
