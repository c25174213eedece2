"""Sequences on the CPU: what is taken over from earlier ones changes no bit, also of models that carry states which cannot be cut back."""

from __future__ import annotations

import numpy as np
import pytest

import hotset
from hotset.config import SamplingParams
from hotset.engine.host_sequences import HostSequences
from hotset.engine.prefixes import MAX_SNAPSHOTS, Snapshots
from hotset.engine.runner import Drawing

CHUNK = 8
# Keys and values alone; a convolution's state; a recurrence; and where the file is there, windows.
MODELS = ("qwen3moe", "lfm2moe", "qwen3next", "gpt-oss")


@pytest.fixture(scope="module", params=MODELS)
def engine(request, shared):
    return hotset.load(shared / f"golden/tiny/{request.param}.gguf", device="cpu", threads=1, n_ctx=96)


@pytest.fixture
def sequences(engine, monkeypatch):
    monkeypatch.setattr(HostSequences, "chunk", CHUNK)
    return engine.sequences(3)


def some(engine, n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, engine.config.n_vocab, n).tolist()


def answer(sequences, seq: int, prompt: list[int], n_kept: int, n: int = 4) -> tuple[int, list[int], list[np.ndarray]]:
    """How much was taken over, the tokens drawn, and their logits."""
    kept = sequences.keep(seq, n_kept)
    sequences.start(seq, Drawing(SamplingParams(temperature=0), 1, frozenset(), wants_logits=True))
    for at in range(kept, len(prompt), CHUNK):
        sequences.feed(seq, prompt[at : at + CHUNK], len(prompt))
    drawn = [sequences.step([seq])[0] for _ in range(n)]
    return kept, [d.token for d in drawn], [d.logits for d in drawn]


def fresh(engine, prompt: list[int]) -> tuple[list[int], list[np.ndarray]]:
    _, tokens, logits = answer(engine.sequences(1), 0, prompt, 0)
    return tokens, logits


def same(got, expected) -> bool:
    return got[0] == expected[0] and all(np.array_equal(a, b) for a, b in zip(got[1], expected[1], strict=True))


def test_the_next_turn_goes_on_where_the_last_ended(engine, sequences):
    prompt = some(engine, 21, 1)
    _, drawn, _ = answer(sequences, 0, prompt, 0)
    turn = [*prompt, *drawn[:-1], *some(engine, 5, 2)]
    kept, *got = answer(sequences, 0, turn, len(prompt) + 3)
    assert kept == len(prompt) + 3
    assert same(got, fresh(engine, turn))


@pytest.mark.parametrize("n", [22, 21, 20, 17, 16, 9, 3, 0])
def test_another_ending_takes_over_what_can_be_had(n, engine, sequences):
    prompt = some(engine, 21, 1)
    answer(sequences, 0, prompt, 0)
    held = list(sequences.tokens[0])
    turn = [*held[:n], *some(engine, 6, 3)]
    kept, *got = answer(sequences, 0, turn, n)
    assert kept <= n
    assert kept == n or engine.config.state_elements > 0
    assert kept >= n - CHUNK or n < 16
    assert same(got, fresh(engine, turn))


@pytest.mark.parametrize("n", [24, 21, 10])
def test_another_sequence_takes_over_a_copy_and_the_first_goes_on(n, engine, sequences):
    prompt = some(engine, 21, 1)
    expected = fresh(engine, prompt)
    answer(sequences, 0, prompt, 0)
    turn = [*sequences.tokens[0][:n], *some(engine, 6, 4)]
    copied = sequences.copy(0, 2, n)
    assert copied <= n
    kept, *got = answer(sequences, 2, turn, copied)
    assert kept == copied
    assert same(got, fresh(engine, turn))
    assert sequences.tokens[0][21:] == expected[0]
    following = [*sequences.tokens[0], 5]
    kept, *got = answer(sequences, 0, following, 24)
    assert kept == 24
    assert same(got, fresh(engine, following))


def test_rows_of_a_step_are_the_rows_alone(engine, sequences):
    prompts = [some(engine, 5 + 4 * s, 10 + s) for s in range(3)]
    for seq, prompt in enumerate(prompts):
        sequences.start(seq, Drawing(SamplingParams(temperature=0), 1, frozenset(), wants_logits=True))
        for at in range(0, len(prompt), CHUNK):
            sequences.feed(seq, prompt[at : at + CHUNK], len(prompt))
    drawn = [sequences.step([0, 1, 2]) for _ in range(4)]
    for seq, prompt in enumerate(prompts):
        got = [step[seq].token for step in drawn], [step[seq].logits for step in drawn]
        assert same(got, fresh(engine, prompt))


def test_few_snapshots_are_kept_and_the_longest_that_fits_is_found():
    kept = Snapshots()
    for n in range(8, 8 * (MAX_SNAPSHOTS + 3), 8):
        kept.add(n, [])
    last = 8 * (MAX_SNAPSHOTS + 2)
    assert kept.longest(last - 8 * MAX_SNAPSHOTS) is None
    assert kept.longest(last).n == last
    assert kept.longest(last - 1).n == last - 8
    assert kept.until(last - 8).longest(10**6).n == last - 8
