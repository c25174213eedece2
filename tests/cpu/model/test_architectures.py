"""Every architecture against llama.cpp's logits and picks of tiny random models, and its numbers against themselves."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import hotset
from hotset.errors import UnsupportedError
from hotset.gguf import open_gguf
from hotset.model import ARCHITECTURES, model_config
from hotset.model.device_support import missing_on_device
from hotset.model.tensors import Tensors
from reference import relative_rms

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("HOTSET_SHARED", ROOT.parent / "shared")) / "golden" / "tiny"
# Whether a position's picks hang on rounding is known where llama.cpp computed in float: none does there.
LIMIT, GELU_LIMIT, QUANTISED_LIMIT, INTEGER_LIMIT = 1e-4, 1e-3, 1e-3, 5e-2


@cache
def runs(path: Path) -> bool:
    """Whether a file is of a supported architecture and of formats that can be computed with."""
    with open_gguf(path) as file:
        if file.metadata.architecture not in ARCHITECTURES:
            return False
        try:
            Tensors(file)
        except UnsupportedError:
            return False
        return True


def names(*, quantised: bool) -> list:
    """The files to test, or one that is skipped loudly where there are none."""
    found = [p.stem for p in sorted(FOLDER.glob("*.gguf")) if runs(p) and is_quantised(p) == quantised]
    return found or [pytest.param("none", marks=pytest.mark.skip(f"SHARED DATA ABSENT: {FOLDER} is not there"))]


def is_quantised(path: Path) -> bool:
    return "logits_f32_1" in np.load(path.with_suffix(".npz"))


def limit_of(path: Path) -> float:
    with open_gguf(path) as file:
        layers = model_config(file.metadata).layers
    parts = [part for rule in layers for branch in rule.feed for part in branch.parts]
    return GELU_LIMIT if any(part.activation.kind == "gelu" for part in parts) else LIMIT


@pytest.mark.parametrize("name", names(quantised=False))
def test_logits_and_picks_are_those_of_llama_cpp_and_depend_on_no_cut(name, picks_of):
    path = FOLDER / f"{name}.gguf"
    golden = np.load(path.with_suffix(".npz"))
    model = hotset.load(path, device="cpu", expert_cache="1slots", record_steps=16)
    for s in (1, 2):
        found = model.logits(golden[f"tokens_{s}"].tolist(), mode="reference")
        assert relative_rms(found, golden[f"logits_{s}"]) <= limit_of(path)
    expected = np.concatenate([golden[f"experts_{s}"] for s in (1, 2)], 1)
    assert np.array_equal(np.sort(picks_of(model), -1), np.sort(expected, -1))
    tokens = golden["tokens_1"].tolist()
    whole = model.logits(tokens, mode="fast")
    model.runner.threads = 1
    by_step = model.logits(tokens, mode="fast", stepwise=True)
    assert np.array_equal(whole.view(np.uint32), by_step.view(np.uint32))


@pytest.mark.parametrize("name", names(quantised=True))
def test_quantised_models_are_llama_cpp_on_the_same_weights(name):
    path = FOLDER / f"{name}.gguf"
    golden = np.load(path.with_suffix(".npz"))
    model = hotset.load(path, device="cpu")
    for s in (1, 2):
        tokens, expected = golden[f"tokens_{s}"].tolist(), golden[f"logits_f32_{s}"]
        assert relative_rms(model.logits(tokens, mode="reference"), expected) <= QUANTISED_LIMIT
        errors = [relative_rms(f, e) for f, e in zip(model.logits(tokens, mode="fast"), expected, strict=True)]
        assert np.median(errors) <= INTEGER_LIMIT


@pytest.mark.parametrize("name", [*names(quantised=False), *names(quantised=True)])
def test_what_is_listed_as_running_on_a_gpu_lacks_nothing_there(name):
    with open_gguf(FOLDER / f"{name}.gguf") as file:
        config = model_config(file.metadata)
        assert ARCHITECTURES[config.architecture].on_gpu == (not missing_on_device(config))
