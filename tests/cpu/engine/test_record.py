"""A recorded run: the simulator counts what the engine counted, hit for hit and byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.config import SamplingParams
from hotset.engine.loading import resolve
from hotset.engine.record import RING_STEPS, record
from hotset.errors import InputError
from hotset.experts.policy import Policy
from hotset.experts.simulate import replay_run, simulate
from hotset.experts.trace import Trace
from hotset.experts.trace_reader import read_run
from hotset.gguf import open_gguf

SAMPLING = SamplingParams(temperature=0.8, seed=5, max_tokens=100, logit_bias={0: -np.inf})


def recorded(engine, path, prompts, n_decode):
    stats = record(engine, prompts, path, model_hash="00", n_decode=n_decode, sampling=SAMPLING)
    return stats, read_run(path)


@pytest.mark.parametrize(
    ("policy", "size"),
    [
        ("lrfu:16", "25%"),
        ("product", "25%"),
        ("lru", "3slots"),
        ("lfu", "50%"),
        ("static", "25%"),
        ("lrfu:4", "off"),
        ("lru", "100%"),
    ],
)
def test_simulated_is_live(policy, size, fresh, some_tokens, tmp_path):
    engine = fresh(policy=policy, expert_cache=size, record_steps=RING_STEPS)
    stats, run = recorded(engine, tmp_path / "run.trace", [some_tokens(30), some_tokens(5)], 20)
    replayed = replay_run(run)
    assert replayed == run.counts
    for phase, live in (("prompt", stats.prompt), ("decode", stats)):
        assert replayed[phase].hits == tuple(layer.hits for layer in live.layers)
        assert sum(replayed[phase].overflows) == live.overflows
        assert replayed[phase].bytes_fetched == live.bytes_fetched


def test_every_token_is_recorded_with_its_picks_and_weights(fresh, some_tokens, tmp_path):
    engine = fresh(record_steps=RING_STEPS)
    n_prompt = 8 * RING_STEPS + 3  # more than the ring holds
    stats, run = recorded(engine, tmp_path / "run.trace", [some_tokens(n_prompt), some_tokens(4)], 6)
    assert (stats.prompt.tokens, stats.tokens) == (n_prompt + 4, 12)
    assert len(run.rows_of("prompt")) == n_prompt + 4
    assert Trace.read(tmp_path / "run.trace").offsets.tolist() == [0, 6, 12]
    assert np.all(run.weights > 0)
    assert run.weights.sum(2) == pytest.approx(1, abs=5e-3)
    assert np.all(np.diff(run.weights.astype(np.float32), axis=2) <= 0)


def test_a_run_starts_from_an_empty_cache(fresh, some_tokens, tmp_path):
    engine = fresh(record_steps=RING_STEPS)
    engine.generate(some_tokens(20), max_tokens=5)
    _, run = recorded(engine, tmp_path / "run.trace", [some_tokens(10)], 0)
    assert replay_run(run) == run.counts


def test_decoded_tokens_alone_start_cold_in_the_laboratory(fresh, some_tokens, tmp_path):
    engine = fresh(record_steps=RING_STEPS)
    recorded(engine, tmp_path / "run.trace", [some_tokens(1)], 30)
    trace = Trace.read(tmp_path / "run.trace")
    assert sum(simulate(trace, 8, Policy()).hits) > 0
    assert trace.span_bytes == engine.runner.cache.shape.span_bytes


def test_the_header_names_model_and_cache(fresh, some_tokens, tmp_path):
    engine = fresh(expert_cache="3slots", policy="lru", record_steps=RING_STEPS)
    with open_gguf(resolve("demo")) as file:
        model_hash = file.header_hash
    record(engine, [some_tokens(3)], tmp_path / "t", model_hash=model_hash, n_decode=0, sampling=SAMPLING)
    header = read_run(tmp_path / "t").header
    assert (header.policy, header.n_slots, header.architecture) == ("lru", (3,) * 6, "qwen3moe")
    assert header.model_hash == model_hash
    assert len(model_hash) == 64


def test_an_empty_prompt_is_refused(fresh, tmp_path):
    with pytest.raises(InputError, match="at least one token"):
        recorded(fresh(record_steps=RING_STEPS), tmp_path / "t", [[]], 1)
