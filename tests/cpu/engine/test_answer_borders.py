"""The engine tells the expert cache where answers begin: `product` forgets there, and what it then hits is what the reference hits."""

from __future__ import annotations

import pytest

from hotset.config import SamplingParams
from hotset.engine.record import RING_STEPS, record
from hotset.engine.runner import Drawing
from hotset.experts.simulate import replay_run
from hotset.experts.trace_reader import read_run
from hotset.kernels.rows import BEGINS, REAL
from replayed import assert_as_replayed

PARAMS = SamplingParams(temperature=0.8, max_tokens=50, logit_bias={0: float("-inf")})


@pytest.fixture
def engine(fresh):
    return fresh(policy="product", expert_cache="25%", record_steps=RING_STEPS)


def prompt_marks(n: int) -> list[list[int]]:
    """A prompt goes through the cache eight rows at a time and begins nothing."""
    return [[REAL] * min(8, n - at) for at in range(0, n, 8)]


def test_every_prompt_of_a_session_is_followed_by_an_answer_that_begins(engine, some_tokens):
    session = engine.session()
    session.start(PARAMS, 3, frozenset())
    marks = []
    for n_prompt, n_drawn in ((20, 6), (3, 5), (9, 1), (4, 4)):  # the first token of an answer needs no step
        session.feed(some_tokens(n_prompt, n_prompt))
        for _ in range(n_drawn):
            session.next()
        n_fed = n_prompt + (1 if marks else 0)  # the last token drawn goes in with the next prompt
        marks += prompt_marks(n_fed) + [[BEGINS], *[[REAL]] * (n_drawn - 2)][: n_drawn - 1]
    assert_as_replayed(engine.runner.cache, marks)


def test_a_session_without_a_prompt_begins_with_its_first_step(engine):
    session = engine.session()
    session.start(PARAMS, 3, frozenset())
    marks = []
    for _ in range(2):
        session.begin(7)
        for _ in range(4):
            session.next()
        marks += [[BEGINS], [REAL], [REAL], [REAL]]
    assert_as_replayed(engine.runner.cache, marks)


def test_a_newcomer_is_told_of_and_sequences_that_begin_together_too(engine, some_tokens):
    sequences = engine.sequences(3)
    marks = []

    def feed(*seqs):
        for seq in seqs:
            n = 5 + 4 * seq
            sequences.keep(seq, 0)
            sequences.start(seq, Drawing(PARAMS, seq, frozenset()))
            sequences.feed(seq, some_tokens(n, len(marks) + seq), n)
            marks.extend(prompt_marks(n))

    def step(seqs, *mask):
        sequences.step(seqs)
        marks.extend([list(mask)] if mask else [])

    feed(0, 1)
    step([0, 1])  # the first tokens come with the prompts
    step([0, 1], BEGINS, BEGINS)
    step([0, 1], REAL, REAL)
    feed(2)
    step([0, 1, 2], REAL, REAL)
    step([0, 1, 2], REAL, REAL, BEGINS)
    step([0, 1, 2], REAL, REAL, REAL)
    feed(0, 1, 2)
    step([0, 1, 2])
    step([0, 1, 2], BEGINS, BEGINS, BEGINS)
    step([0, 1, 2], REAL, REAL, REAL)
    assert_as_replayed(engine.runner.cache, marks)


def test_a_recorded_run_of_several_answers_is_replayed_to_the_same_counts(engine, some_tokens, tmp_path):
    path = tmp_path / "run.trace"
    prompts = [some_tokens(n, n) for n in (12, 1, 7, 20)]
    record(engine, prompts, path, model_hash="00", n_decode=12, sampling=PARAMS)
    run = read_run(path)
    assert run.begins_answer.sum() == len(prompts)
    assert replay_run(run) == run.counts
