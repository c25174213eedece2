"""Logits depend on tokens and mode alone: the same bits at any placement, policy, chunk, batch and number of threads."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hotset.engine import host
from hotset.model.batch import prompt_batch, step_batch

MODES = pytest.mark.parametrize("mode", ["reference", "fast"])
K, EXPERTS = 4, 32


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.fixture(scope="module")
def tokens(some_tokens) -> list[int]:
    return some_tokens(45)


@pytest.mark.parametrize("policy", ["lru", "lfu", "lrfu"])
@pytest.mark.parametrize("n_slots", [0, 1, K, K + 1, EXPERTS // 2, EXPERTS])
def test_placement_and_policy_change_no_bit(policy, n_slots, fresh, demo, tokens):
    model = fresh(expert_cache=f"{n_slots}slots", policy=policy)
    for mode in ("reference", "fast"):
        assert same(model.logits(tokens, mode=mode), demo.logits(tokens, mode=mode))
    assert same(model.logits(tokens[:12], stepwise=True), demo.logits(tokens[:12], stepwise=True))
    assert model.stats().prompt.hits + model.stats().prompt.misses > 0


@MODES
def test_a_prompt_at_once_in_chunks_and_token_by_token_is_the_same(mode, demo, tokens, monkeypatch):
    whole = demo.logits(tokens, mode=mode)
    assert same(demo.logits(tokens, mode=mode, stepwise=True), whole)
    for chunk in (2, 7, 16, 44):
        monkeypatch.setattr(host, "CHUNK", chunk)
        assert same(demo.logits(tokens, mode=mode), whole), chunk


@MODES
def test_what_follows_changes_nothing_before(mode, demo, tokens):
    assert same(demo.logits(tokens, mode=mode)[:20], demo.logits(tokens[:20], mode=mode))


@MODES
@pytest.mark.parametrize("n", [2, 3, 8])
def test_rows_of_a_batch_are_the_rows_alone(mode, n, demo, some_tokens):
    runner = demo.runner
    prompts = [some_tokens(5 + 3 * s, s) for s in range(n)]
    steps = [some_tokens(4, 100 + s) for s in range(n)]
    alone = [demo.logits(p + t, mode=mode)[len(p) :] for p, t in zip(prompts, steps, strict=True)]
    ops = runner.ops(runner.kv(64, mode, n_seqs=n), mode)
    for s, prompt in enumerate(prompts):
        runner.forward(ops, prompt_batch(prompt, 0, sequence=s))
    for i in range(4):
        batch = step_batch([t[i] for t in steps], [len(p) + i for p in prompts])
        for s, row in enumerate(runner.forward(ops, batch)):
            assert same(row, alone[s][i]), (i, s)


@MODES
def test_sequences_of_a_batch_may_come_in_any_order(mode, demo, some_tokens):
    runner = demo.runner
    a, b = some_tokens(6, 1), some_tokens(9, 2)
    ops = runner.ops(runner.kv(16, mode, n_seqs=3), mode)
    runner.forward(ops, prompt_batch(a[:-1], 0, sequence=2))
    runner.forward(ops, prompt_batch(b[:-1], 0, sequence=0))
    rows = runner.forward(ops, step_batch([a[-1], b[-1]], [5, 8], sequences=[2, 0]))
    assert same(rows[0], demo.logits(a, mode=mode)[-1])
    assert same(rows[1], demo.logits(b, mode=mode)[-1])


@MODES
def test_threads_change_no_bit(mode, fresh, demo, tokens):
    for threads in (1, min(2, os.cpu_count() or 1)):
        assert same(fresh(threads=threads).logits(tokens, mode=mode), demo.logits(tokens, mode=mode))


@MODES
def test_old_keys_and_values_are_never_read(mode, demo, tokens):
    kv = demo.runner.kv(64, mode)
    for layer in kv.layers:
        layer.keys.data[:], layer.values.data[:] = np.nan, np.nan
    found = demo.runner.forward(demo.runner.ops(kv, mode), prompt_batch(tokens, 0, wanted=range(len(tokens))))
    assert same(found, demo.logits(tokens, mode=mode))


@MODES
def test_an_expert_counts_only_where_it_is_picked(mode, fresh, demo, tokens):
    model = fresh(record_steps=8)
    expected = model.logits(tokens, mode=mode)
    bank, ring = model.runner.model.bank, model.runner.model.cache.recorded_picks()
    picked = [set(ring[:, layer].ravel().tolist()) - {-1} for layer in range(ring.shape[1])]
    idle = [(layer, e) for layer in range(len(picked)) for e in range(EXPERTS) if e not in picked[layer]]
    for layer, e in idle:
        bank.span(layer, e)[:] = 0xFF  # scales of NaN
    assert same(model.logits(tokens, mode=mode), expected)
    last = int(ring[-1, 0, (len(tokens) - 1) % 8, 0])
    bank.span(0, last)[:] = 0xFF
    assert np.isnan(model.logits(tokens, mode=mode)[-1]).all()
