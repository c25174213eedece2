from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import replace

import numpy as np
import pytest
import torch

from hotset.config import MAX_RECENT, SamplingParams
from hotset.engine.sampling import sample
from hotset.errors import InputError
from hotset.kernels.rows import Rows
from hotset.kernels.sampler import ENDED, NO_TOKEN, RUNNING, WAYS, Sampler
from hotset.kernels.selection import reference
from hotset.kernels.token_mask import pack

INF = float("inf")
SEEDS = (0, 1, 2**31, 2**32 - 1, 2**63 + 5, 2**64 - 1)


def rows_after(sequences, mask=None, seqs=None):
    m = len(sequences)
    return Rows(
        tokens=torch.full((m,), -7, dtype=torch.int32),
        positions=torch.tensor([len(s) - 1 for s in sequences], dtype=torch.int32),
        seqs=torch.tensor(seqs if seqs is not None else range(m), dtype=torch.int32),
        row_mask=torch.tensor(mask or [1] * m, dtype=torch.int32),
    )


def random_case(rng, n_vocab):
    logits = rng.normal(0, rng.choice([0.1, 1, 5]), n_vocab).astype(np.float32)
    if rng.random() < 0.5:
        logits = np.round(logits)  # ties
    logits[rng.random(n_vocab) < 0.1] = rng.choice([-INF, np.nan, -0.0])
    params = SamplingParams(
        temperature=float(rng.choice([0, 1e-5, 0.3, 1, 2.5, 1e6])),
        top_k=int(rng.choice([0, 1, 2, 7, 40, 1000])),
        top_p=float(rng.choice([0, 0.3, 0.9, 0.999, 1])),
        min_p=float(rng.choice([0, 0.02, 0.4, 1])),
        repeat_penalty=float(rng.choice([1, 1.1, 0.7])),
        presence_penalty=float(rng.choice([0, 0.4])),
        frequency_penalty=float(rng.choice([0, 0.3, -0.1])),
        repeat_last_n=int(rng.choice([0, 5, 64, 200])),
        logit_bias={int(t): float(rng.choice([-INF, 2.5, -1])) for t in rng.integers(0, n_vocab, rng.integers(0, 4))},
    )
    return logits, params, int(rng.choice(SEEDS)), rng.integers(0, n_vocab, rng.integers(1, 150)).tolist()


def tokens_by_kernel(sampler, cases, way="draw", masks=None):
    for seq, (_, params, seed, tokens) in enumerate(cases):
        sampler.start(seq, params, seed, tokens)
        sampler.set_mask(seq, masks[seq] if masks else None)
    rows = rows_after([tokens for *_, tokens in cases])
    logits = torch.from_numpy(np.stack([logits for logits, *_ in cases]))
    sampler.step(way, logits, rows)
    return rows.tokens.tolist()


DRAWING = pytest.mark.parametrize("way", ["select", "draw"])


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """The interpreter runs programs one after the other."""
    monkeypatch.setattr("hotset.kernels.sampler.RANK_PROGRAMS", 3)


@pytest.fixture
def small_groups(monkeypatch):
    """Selection of a small vocabulary as if it were large: in groups and blocks of a few logits."""
    monkeypatch.setattr("hotset.kernels.sampler.GROUP", 4)
    monkeypatch.setattr("hotset.kernels.sampler.GROUPS_PER_PROGRAM", 2)
    monkeypatch.setattr("hotset.kernels.sampler.BLOCK", 32)
    monkeypatch.setattr("hotset.kernels.sampler.RANK_BLOCK", 8)


def check_draws(way, n_vocab, n_cases):
    rng = np.random.default_rng(n_vocab)
    cases = [random_case(rng, n_vocab) for _ in range(n_cases)]
    for logits, params, *_ in cases:
        logits[0] = 0  # something to draw, whatever the rest is
        params.logit_bias.pop(0, None)
    expected = [sample(x, params, tokens, seed, len(tokens)) for x, params, seed, tokens in cases]
    assert tokens_by_kernel(Sampler(n_cases, n_cases, n_vocab, "cpu"), cases, way) == expected


@DRAWING
@pytest.mark.parametrize("n_vocab", [1, 2, 31, 97])
def test_drawn_tokens_equal_the_reference(n_vocab, way):
    check_draws(way, n_vocab, 24)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("n_vocab", [3, 61, 97])
def test_tokens_drawn_from_a_selection_of_small_groups_equal_the_reference(n_vocab):
    check_draws("select", n_vocab, 24)


@DRAWING
def test_a_vocabulary_of_several_blocks_is_summed_across_them(way, monkeypatch):
    monkeypatch.setattr("hotset.kernels.sampler.DRAW_BLOCK", 16)
    monkeypatch.setattr("hotset.kernels.sampler.BLOCK", 16)
    rng = np.random.default_rng(5)
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=0.001)
        for t, k, p in [(1, 0, 1), (3, 60, 0.9), (0.5, 0, 0.99)]
    ]
    cases = [(rng.normal(0, 0.5, 97).astype(np.float32), p, seed, [1, 2]) for p in params for seed in range(4)]
    expected = [sample(x, params, tokens, seed, len(tokens)) for x, params, seed, tokens in cases]
    assert tokens_by_kernel(Sampler(12, 12, 97, "cpu"), cases, way) == expected


def test_every_way_gives_the_most_probable_token():
    rng = np.random.default_rng(9)
    cases = [
        (
            np.round(rng.normal(0, 2, 97)).astype(np.float32),
            SamplingParams(temperature=0, repeat_penalty=1.2),
            0,
            [3, 3, 5],
        )
        for _ in range(8)
    ]
    sampler = Sampler(8, 8, 97, "cpu")
    expected = [sample(x, params, tokens, seed, len(tokens)) for x, params, seed, tokens in cases]
    for way in WAYS:
        assert tokens_by_kernel(sampler, cases, way) == expected


def test_a_row_alone_draws_what_it_draws_among_others():
    rng = np.random.default_rng(11)
    cases = [(rng.normal(0, 1, 31).astype(np.float32), SamplingParams(), seed, [1]) for seed in range(4)]
    together = tokens_by_kernel(Sampler(4, 4, 31, "cpu"), cases)
    assert together == [tokens_by_kernel(Sampler(1, 1, 31, "cpu"), [case])[0] for case in cases]


def test_successive_steps_equal_the_reference_with_its_growing_past():
    params = SamplingParams(temperature=1.5, repeat_penalty=1.3, frequency_penalty=0.2, repeat_last_n=3)
    sampler, past, rng = Sampler(1, 2, 12, "cpu"), [4, 4, 2], np.random.default_rng(1)
    sampler.start(1, params, 77, past)
    rows = rows_after([past], seqs=[1])
    for _ in range(8):
        logits = rng.normal(0, 1, (1, 12)).astype(np.float32)
        expected = sample(logits[0], params, past, 77, len(past))
        sampler.draw(torch.from_numpy(logits), rows)
        past.append(expected)
        assert rows.tokens.tolist() == [expected]
        assert rows.positions.tolist() == [len(past) - 1]


def test_the_ring_of_recent_tokens_wraps():
    past = [7] * 10 + [1] * (MAX_RECENT - 3)
    params = SamplingParams(temperature=0, presence_penalty=1.0, repeat_last_n=MAX_RECENT - 2)
    sampler = Sampler(1, 1, 9, "cpu")
    sampler.recent.fill_(8)
    sampler.start(0, params, 0, past)
    assert sorted(set(sampler.recent[0].tolist())) == [1, 7]
    ring = sampler.recent[0].tolist()
    assert [ring[p % MAX_RECENT] for p in range(len(past) - MAX_RECENT, len(past))] == past[-MAX_RECENT:]


def test_end_tokens_raise_the_flag_of_their_sequence_and_it_stays_and_makes_the_row_idle():
    sampler = Sampler(3, 3, 5, "cpu")
    for seq in range(3):
        sampler.start(seq, SamplingParams(temperature=0), 0, [0], [4, 2])
    rows = rows_after([[0]] * 3, seqs=[2, 0, 1])
    sampler.greedy(torch.eye(5)[[4, 1, 2]], rows)
    assert sampler.done.tolist() == [RUNNING, ENDED, ENDED]
    assert rows.row_mask.tolist() == [0, 1, 0]
    sampler.greedy(torch.eye(5)[[1, 1, 1]], rows)
    assert sampler.done.tolist() == [RUNNING, ENDED, ENDED]
    assert rows.tokens.tolist() == [4, 1, 2]
    sampler.start(1, SamplingParams(), 0, [0])
    assert sampler.done.tolist() == [RUNNING, RUNNING, ENDED]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [float("nan"), -INF])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_without_any_token_left_are_flagged_and_stay_in_range(value, way):
    sampler = Sampler(1, 1, 40, "cpu")
    cases = [(np.full(40, value, np.float32), SamplingParams(temperature=float(way != "greedy")), 0, [1])]
    assert 0 <= tokens_by_kernel(sampler, cases, way)[0] < 40
    assert sampler.done.tolist() == [NO_TOKEN]


@pytest.mark.parametrize("way", WAYS)
def test_padded_rows_draw_nothing(way):
    sampler = Sampler(2, 1, 8, "cpu")
    sampler.start(0, SamplingParams(temperature=0), 0, [1], [3])
    rows = rows_after([[1], [1]], mask=[0, 1], seqs=[0, 0])
    logits = torch.eye(8)[[3, 5]]
    sampler.step(way, logits, rows)
    assert rows.tokens.tolist() == [-7, 5]
    assert rows.positions.tolist() == [0, 1]
    assert sampler.done.tolist() == [RUNNING]


def test_the_models_logits_stay_as_they_are_and_padding_is_not_drawn():
    sampler = Sampler(1, 1, 5, "cpu")
    sampler.start(0, SamplingParams(temperature=0, repeat_penalty=2.0), 0, [1])
    logits = torch.tensor([[0.0, 2.0, 1.5, float("nan"), 0.0, 99.0, 99.0]])
    before = logits.clone()
    rows = rows_after([[1]])
    sampler.greedy(logits, rows)
    assert rows.tokens.tolist() == [2]
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))


def test_a_bias_outside_the_vocabulary_is_refused():
    with pytest.raises(InputError, match="token id 5; ids of this model go from 0 to 4"):
        Sampler(1, 1, 5, "cpu").start(0, SamplingParams(logit_bias={5: 1.0}), 0, [1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n_vocab", [1, 32, 33, 97])
def test_masked_tokens_are_forbidden_before_all_else(n_vocab, way):
    rng = np.random.default_rng(n_vocab)
    cases, masks = [], []
    for _ in range(8):
        logits, params, seed, tokens = random_case(rng, n_vocab)
        allowed = rng.random(n_vocab) < 0.3
        allowed[rng.integers(n_vocab)] = True
        logits[allowed] = np.where(np.isfinite(logits[allowed]), logits[allowed], 0)
        bias = dict.fromkeys(range(0, n_vocab, 3), 5.0)
        temperature = 0.0 if way == "greedy" else params.temperature
        cases.append((logits, replace(params, temperature=temperature, logit_bias=bias), seed, tokens))
        masks.append(pack(allowed))
    masks[3] = None
    cases[3][0][:] = np.nan_to_num(cases[3][0], neginf=0)
    expected = [
        sample(x, p, tokens, seed, len(tokens), m) for (x, p, seed, tokens), m in zip(cases, masks, strict=True)
    ]
    assert tokens_by_kernel(Sampler(8, 8, n_vocab, "cpu"), cases, way, masks) == expected


def test_a_mask_holds_until_it_is_changed_or_the_next_request():
    sampler, logits = Sampler(1, 1, 40, "cpu"), torch.arange(40.0)[None]
    sampler.start(0, SamplingParams(temperature=0), 0, [1])
    rows, drawn = rows_after([[1]]), []
    for mask in (None, [3, 33, 35], "same", [2], None):
        if mask != "same":
            sampler.set_mask(0, mask and pack(np.isin(np.arange(40), mask)))
        sampler.greedy(logits, rows)
        drawn += rows.tokens.tolist()
    assert drawn == [39, 35, 35, 2, 39]
    sampler.set_mask(0, pack(np.zeros(40, bool)))
    sampler.greedy(logits, rows)
    assert sampler.done.tolist() == [NO_TOKEN]
    sampler.start(0, SamplingParams(temperature=0), 0, [1])
    rows = rows_after([[1]])
    sampler.greedy(logits, rows)
    assert rows.tokens.tolist() == [39]


def test_a_mask_of_another_size_is_refused():
    with pytest.raises(InputError, match=r"a token mask of int32 \[1\]; 33 tokens need int32 \[2\]"):
        Sampler(1, 1, 33, "cpu").set_mask(0, np.zeros(1, np.int32))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=5),
        SamplingParams(top_k=24),
        SamplingParams(top_k=60),
        SamplingParams(top_k=0, min_p=0.3),
        SamplingParams(top_k=0, min_p=0),
        SamplingParams(temperature=0, top_k=0),
    ],
    ids=lambda p: f"k {p.top_k} p {p.min_p} t {p.temperature}",
)
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "few", "far"])
def test_selection_holds_the_front_of_the_whole_order(params, kind, monkeypatch):
    monkeypatch.setattr("hotset.kernels.sampler.GROUP", 4)
    monkeypatch.setattr("hotset.kernels.sampler.BLOCK", 16)
    rng = np.random.default_rng(1)
    x = rng.normal(0, 2, 97).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    elif kind == "equal":
        x[:] = 0.5
    elif kind == "few":
        x[rng.permutation(97)[:90]] = -INF
    elif kind == "far":
        x[::5] *= np.float32(1e37)
    sampler = Sampler(1, 1, 97, "cpu")
    sampler.start(0, params, 3, [1])
    sampler.select(torch.from_numpy(x)[None], rows_after([[1]]))
    n = int(sampler.count)
    with np.errstate(over="ignore"):
        expected = reference(x, params, group=4)
    k = 1 if params.is_greedy else params.top_k or len(expected)
    assert n <= len(expected)
    assert n >= min(k, len(expected))
    front = min(n, k)
    assert sampler.ids[0, :front].tolist() == expected[:front].tolist()
    assert sampler.ordered[0, :front].tolist() == x[expected[:front]].tolist()


def test_a_flat_distribution_keeps_few_of_its_equals():
    sampler = Sampler(1, 1, 5000, "cpu")
    sampler.start(0, SamplingParams(top_k=3), 3, [1])
    sampler.select(torch.ones(1, 5000), rows_after([[1]]))
    assert int(sampler.count) == 3 * 5
    assert sampler.ids[0, :3].tolist() == [0, 1, 2]


def test_the_way_serves_all_sequences():
    sampler = Sampler(2, 3, 64 * 40, "cpu")
    ways = [sampler.way]
    for seq, params in enumerate(
        [SamplingParams(temperature=0, top_k=0, min_p=0), SamplingParams(top_k=30), SamplingParams(top_k=31)]
    ):
        sampler.start(seq, params, 0, [1])
        ways.append(sampler.way)
    sampler.stop(2)
    ways.append(sampler.way)
    for params in (SamplingParams(top_k=0), SamplingParams(top_k=0, min_p=0)):
        sampler.start(2, params, 0, [1])
        ways.append(sampler.way)
    assert ways == ["greedy", "greedy", "select", "draw", "select", "select", "draw"]
