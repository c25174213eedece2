from __future__ import annotations

import math

import numpy as np
import pytest

from fakes import fake_engine
from hotset.bench.perplexity import Scoring, negative_log_likelihoods, score
from hotset.errors import InputError


def test_the_second_half_of_each_window_is_scored_but_for_its_last_position():
    positions = Scoring(512).positions
    assert (positions[0], positions[-1]) == (256, 510)
    engine = fake_engine()
    list(score(engine, "word " * 40, Scoring(16, 2)))
    assert engine.runner.wanted == [list(range(8, 15))] * 2


def test_every_window_gives_a_running_value_up_to_the_number_asked_for():
    engine = fake_engine()
    n = len(engine.tokenize("word " * 40))
    assert [s.chunks for s in score(engine, "word " * 40, Scoring(8, 3))] == [1, 2, 3]
    assert [s.chunks for s in score(engine, "word " * 40, Scoring(8, None))][-1] == n // 8


def test_the_text_is_tokenised_without_special_tokens():
    engine = fake_engine()
    assert 0 not in engine.tokenize("<|endoftext|>", add_special=False)


def test_likelihoods_are_those_of_softmax_in_float64_and_do_not_overflow():
    logits = np.random.default_rng(0).normal(0, 30, (40, 50)).astype(np.float32)
    logits[3] += 1e4
    targets = [i % 50 for i in range(40)]
    exact = logits.astype(np.longdouble)
    exact -= exact.max(1, keepdims=True)
    expected = np.log(np.exp(exact).sum(1)) - exact[np.arange(40), targets]
    np.testing.assert_allclose(negative_log_likelihoods(logits, targets), expected.astype(float), rtol=1e-12)


def test_the_uncertainty_is_one_standard_error_times_the_perplexity(monkeypatch):
    losses = np.array([1.0, 2.0, 3.0, 2.0, 1.0, 3.0, 2.0])
    monkeypatch.setattr("hotset.bench.perplexity.negative_log_likelihoods", lambda *_: losses)
    (result,) = score(fake_engine(), "word " * 20, Scoring(16, 1))
    assert result.perplexity == pytest.approx(math.exp(2))
    assert result.uncertainty == pytest.approx(math.exp(2) * losses.std(ddof=1) / math.sqrt(7))


@pytest.mark.parametrize("wrong", [{"window": 3}, {"chunks": 0}, {"mode": "exact"}])
def test_settings_out_of_range_are_errors(wrong):
    with pytest.raises(InputError):
        Scoring(**wrong)
