"""Perplexity on held-out text: llama.cpp's on both models, and PyTorch's on a little of it."""

from __future__ import annotations

import numpy as np
import pytest

from reference import Qwen3MoE

WINDOW = 512
LLAMA_CPP = {"demo": 11.189, "lab": 12.607}


def surprise(logits: np.ndarray, following: list[int]) -> np.ndarray:
    """-log p of the token that follows each row."""
    logits = logits.astype(np.float64)
    top = logits.max(1)
    whole = top + np.log(np.exp(logits - top[:, None]).sum(1))
    return whole - logits[np.arange(len(following)), following]


def perplexity(logits_of, tokens: list[int], n_windows: int) -> float:
    """As llama.cpp has it: windows side by side, the second half of each scored."""
    scored = range(WINDOW // 2, WINDOW - 1)
    losses = []
    for start in range(0, n_windows * WINDOW, WINDOW):
        window = tokens[start : start + WINDOW]
        losses.append(surprise(logits_of(window, scored), window[WINDOW // 2 + 1 :]))
    return float(np.exp(np.concatenate(losses).mean()))


@pytest.fixture(scope="module")
def text(shared) -> str:
    return (shared / "models" / "held.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("name", ["demo", "lab"])
def test_forty_windows_are_as_surprising_as_to_llama_cpp(name, mode, model_of, text):
    model = model_of(name)
    found = perplexity(lambda window, wanted: model.logits(window, mode=mode, wanted=wanted), model.tokenize(text), 40)
    assert abs(found / LLAMA_CPP[name] - 1) <= 0.003, found


def test_one_window_is_as_surprising_as_to_pytorch(demo, text, shared):
    tokens = demo.tokenize(text[:4000])
    reference = Qwen3MoE(shared / "models" / "demo-moe-Q4_K_M.gguf")
    expected = perplexity(lambda window, wanted: reference(window).logits[wanted], tokens, 1)
    found = perplexity(lambda window, wanted: demo.logits(window, mode="reference", wanted=wanted), tokens, 1)
    assert abs(found / expected - 1) <= 1e-4
