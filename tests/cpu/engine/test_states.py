"""Sessions of models whose layers keep a state: what a prompt shares with what is held is reused only where the state allows it."""

from __future__ import annotations

import numpy as np
import pytest

import hotset
from hotset.config import SamplingParams
from hotset.engine.engine import reusable

NAMES = ("lfm2moe", "qwen3next", "qwen35moe")


@pytest.fixture(params=NAMES)
def path(request, shared):
    return shared / "golden" / "tiny" / f"{request.param}.gguf"


def drawn(session, tokens, n=6) -> list[int]:
    """Feed a prompt into a session as the engine does, and draw greedily."""
    session.start(SamplingParams(temperature=0), seed=0, end_ids=frozenset())
    session.keep(reusable(session.tokens, tokens))
    session.feed(tokens[len(session.tokens) :])
    return [session.next().token for _ in range(n)]


def test_a_prompt_continued_cut_back_or_changed_gives_what_a_new_session_gives(path):
    prompt = np.load(path.with_suffix(".npz"))["tokens_1"].tolist()
    model = hotset.load(path, device="cpu")
    session = model.session()
    first = drawn(session, prompt)
    for tokens in ([*prompt, *first, 5, 9], prompt, [*prompt[:9], 1, 2, 3], prompt[:4]):
        assert drawn(session, tokens) == drawn(model.session(), tokens)
