"""Every architecture on a GPU against llama.cpp's logits of tiny random models, and its numbers at several placements."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

import hotset  # noqa: E402
from hotset.config import SamplingParams  # noqa: E402
from hotset.engine.engine import reusable  # noqa: E402
from hotset.gguf import open_gguf  # noqa: E402
from hotset.model import ARCHITECTURES  # noqa: E402

LIMIT = 1e-3


def supported(shared) -> list:
    """The tiny models of architectures that run."""
    found = []
    for path in sorted((shared / "golden" / "tiny").glob("*.gguf")):
        with open_gguf(path) as file:
            if file.metadata.architecture in ARCHITECTURES:
                found.append(path)
    return found


def relative_rms(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_logits_in_reference_mode_are_those_of_llama_cpp(shared):
    failed = {}
    for path in supported(shared):
        golden = np.load(path.with_suffix(".npz"))
        model = hotset.load(path, device="cuda", vram="2GiB", graph=False)
        for s in (1, 2):
            expected = golden[f"logits_f32_{s}" if f"logits_f32_{s}" in golden else f"logits_{s}"]
            error = relative_rms(model.logits(golden[f"tokens_{s}"].tolist(), mode="reference"), expected)
            if not error <= LIMIT:
                failed[f"{path.stem}, sequence {s}"] = error
    assert not failed


def test_no_bit_depends_on_placement_or_the_cut_of_a_prompt(shared):
    differ = []
    for path in supported(shared):
        tokens = np.load(path.with_suffix(".npz"))["tokens_1"].tolist()[:8]
        results = []
        for cache, stepwise in (("off", False), ("100%", True), ("1slots", False)):
            model = hotset.load(path, device="cuda", vram="2GiB", graph=False, expert_cache=cache, policy="lru")
            results.append(model.logits(tokens, mode="fast", stepwise=stepwise))
        if not all(np.array_equal(results[0].view(np.uint32), r.view(np.uint32)) for r in results[1:]):
            differ.append(path.stem)
    assert not differ


@pytest.mark.parametrize("name", ["gpt-oss", "deepseek2-v3", "qwen3next", "lfm2moe"])
def test_captured_steps_continue_as_prompts_do(shared, name):
    path = shared / "golden" / "tiny" / f"{name}.gguf"
    prompt = np.load(path.with_suffix(".npz"))["tokens_1"].tolist()
    model = hotset.load(path, device="cuda", vram="2GiB")
    session = model.session()
    first = drawn(session, prompt)
    logits = model.logits(prompt + first, mode="fast", stepwise=True)
    assert first == logits[len(prompt) - 1 : -1].argmax(1).tolist()
    # A state cannot be cut back: what a changed prompt shares with what is held is computed anew.
    for tokens in ([*prompt, *first, 5, 9], prompt, [*prompt[:9], 1, 2, 3]):
        assert drawn(session, tokens) == drawn(model.session(), tokens)


def drawn(session, tokens, n=12) -> list[int]:
    """Feed a prompt into a session as the engine does, and draw greedily."""
    session.start(SamplingParams(temperature=0), seed=0, end_ids=frozenset())
    session.keep(reusable(session.tokens, tokens))
    session.feed(tokens[len(session.tokens) :])
    return [session.next().token for _ in range(n)]
