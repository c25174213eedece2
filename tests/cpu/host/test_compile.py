"""Machine code on disk: a folder of hotset's own, found again by the next process, and no harm where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.host import compile as host_compile
from hotset.host.compile import code_cache
from hotset.host.folders import cache_root


def run(code: str, **environment: str) -> dict:
    """The JSON value that a fresh process prints last."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_cache_lies_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("HOTSET_CACHE", "/own")
    assert cache_root() == Path("/own")
    monkeypatch.delenv("HOTSET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/hotset")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache/hotset"


@pytest.fixture
def fresh_code_cache(tmp_path):
    return lambda: Path(code_cache.__wrapped__())


def test_a_place_that_cannot_be_written_gives_way_to_a_temporary_one(monkeypatch, tmp_path, fresh_code_cache):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOTSET_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = fresh_code_cache()
    assert folder.parent == tmp_path
    assert folder.is_dir()


def test_edited_sources_get_a_folder_of_their_own(monkeypatch, tmp_path, fresh_code_cache):
    monkeypatch.setenv("HOTSET_CACHE", str(tmp_path))
    package = tmp_path / "hotset"
    for folder in ("host", "quant", "experts", "lab"):
        (package / folder).mkdir(parents=True)
        (package / folder / "source.py").write_text("one")
    monkeypatch.setattr(host_compile, "__file__", str(package / "host" / "compile.py"))
    seen = [fresh_code_cache(), fresh_code_cache()]
    assert seen[0] == seen[1]
    for folder in ("host", "quant", "experts", "lab"):
        (package / folder / "source.py").write_text("two")
        seen.append(fresh_code_cache())
    assert len(set(seen)) == 5


TWO_WAYS = """
import json, pathlib, sys
import numba
from hotset.host.activation import rms_norm
import numpy as np
before = numba.config.CACHE_DIR
rms_norm(np.ones((1, 32), np.float32), np.ones(32, np.float32), 1e-6, integers=False)
rms_norm(np.ones((16, 32), np.float32), np.ones(32, np.float32), 1e-6, integers=False)
names = lambda key: sorted(p.name for p in pathlib.Path(__import__("os").environ[key]).rglob("*.nbi"))
print(json.dumps({"own": names("HOTSET_CACHE"), "user": names("NUMBA_CACHE_DIR"), "same": numba.config.CACHE_DIR == before}))
"""


def test_the_users_own_cache_of_numba_is_left_alone_and_both_ways_of_a_kernel_are_kept(tmp_path):
    for name in ("own", "user"):
        (tmp_path / name).mkdir()
    seen = run(TWO_WAYS, HOTSET_CACHE=str(tmp_path / "own"), NUMBA_CACHE_DIR=str(tmp_path / "user"))
    assert seen["same"]
    assert not seen["user"]
    assert len([name for name in seen["own"] if ".norm" in name]) == 2


START = """
import json
import hotset
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    model = hotset.load("demo", device="cpu")
    text = model.generate("The", max_tokens=3, temperature=0.8, seed=1).text
    model.logits(list(range(20)), mode="reference")
print(json.dumps({"compiled": [str(e.data["dispatcher"]) for _, e in compiled.buffer], "text": text}))
"""


def test_a_second_process_compiles_nothing():
    first = run(START)
    second = run(START)
    assert second == {"compiled": [], "text": first["text"]}
