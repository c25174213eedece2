"""llama.cpp's logits and greedy answers on the two trained models; their goldens round activations to int8 and are stored as float16."""

from __future__ import annotations

import json

import numpy as np
import pytest

from reference import relative_rms

MODELS = pytest.mark.parametrize("name", ["demo", "lab"])
MODES = pytest.mark.parametrize("mode", ["reference", "fast"])


@MODELS
@MODES
@pytest.mark.parametrize("prompt", range(3))
def test_logits_are_near_and_agree_wherever_llama_cpp_is_sure(name, mode, prompt, model_of, shared):
    golden = np.load(shared / "golden" / f"{name}-moe-Q4_K_M.logits.npz")
    expected = golden[f"logits_{prompt}"].astype(np.float64)
    found = model_of(name).logits(golden[f"tokens_{prompt}"].tolist(), mode=mode)
    if mode == "reference":
        assert relative_rms(found, expected) <= 0.04
    else:
        assert relative_rms(found, expected) <= 0.07
        assert np.median([relative_rms(f, e) for f, e in zip(found, expected, strict=True)]) <= 0.03
    second, first = np.sort(expected, 1)[:, -2:].T
    sure = first - second > 0.5
    assert sure.sum() > 10
    assert np.array_equal(found.argmax(1)[sure], expected.argmax(1)[sure])


@MODELS
@MODES
def test_fed_the_golden_tokens_the_next_one_is_predicted(name, mode, model_of, shared):
    model, least = model_of(name), {"reference": 0.25, "fast": 0.5}[mode]
    checked = 0
    for case in json.loads((shared / "golden" / f"{name}-moe-Q4_K_M.greedy.json").read_text()):
        prompt, answer = case["prompt_ids"], case["greedy"]
        steps = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        found = model.logits(prompt + answer, mode=mode, wanted=steps).argmax(1)
        sure = np.array(case["top2_gap"]) >= least
        assert np.array_equal(found[sure], np.array(answer)[sure]), case["prompt"][:40]
        checked += int(sure.sum())
    assert checked > 300


@MODELS
def test_the_prompts_are_tokenised_as_llama_cpp_does(name, model_of, shared):
    for case in json.loads((shared / "golden" / f"{name}-moe-Q4_K_M.greedy.json").read_text()):
        assert model_of(name).tokenize(case["prompt"])[: len(case["prompt_ids"])] == case["prompt_ids"]
