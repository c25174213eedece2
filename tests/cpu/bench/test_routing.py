from __future__ import annotations

import numpy as np
import pytest

import hotset
from hotset.bench.routing import routing_trace
from hotset.bench.runner import Bench, Plan, Tokens, results
from hotset.errors import FileError, InputError
from hotset.experts.policy import Policy
from hotset.experts.simulate import simulate
from hotset.experts.trace import Trace


@pytest.fixture(scope="module")
def demo():
    return hotset.load("demo", device="cpu", n_ctx=64)


def save(path, trace: Trace):
    np.savez(path, experts=trace.experts, offsets=trace.offsets, n_experts=trace.n_experts)
    return path


def test_made_picks_have_the_models_counts_and_are_the_same_every_time(demo):
    random, repeat = (routing_trace(name, demo.config) for name in ("random", "repeat"))
    assert (random.n_layers, random.n_experts, random.k) == (6, 32, 4)
    assert (repeat.n_tokens, repeat.offsets.tolist()) == (1, [0, 1])
    assert random.offsets[:3].tolist() == [0, 256, 512]
    assert np.array_equal(random.experts, routing_trace("random", demo.config).experts)


def test_a_trace_of_other_counts_is_an_error_that_names_both(demo, tmp_path):
    path = save(tmp_path / "other.npz", Trace(np.array([[[0, 1]], [[1, 2]]]), np.array([0, 2]), 8))
    with pytest.raises(InputError, match=r"1 layers of 8 experts, 2 picked.*6 layers of 32 experts, 4 picked"):
        routing_trace(str(path), demo.config)


def test_a_trace_without_tokens_is_an_error(demo, tmp_path):
    empty = Trace(np.zeros((0, 6, 4), np.int16), np.array([0]), 32)
    with pytest.raises(InputError, match="no tokens"):
        routing_trace(str(save(tmp_path / "empty.npz", empty)), demo.config)


def test_a_file_that_is_not_there_is_named(demo, tmp_path):
    with pytest.raises(FileError, match=r"absent\.npz"):
        routing_trace(str(tmp_path / "absent.npz"), demo.config)


@pytest.mark.parametrize("policy", ["lrfu:16", "lru"])
def test_hit_rates_equal_the_simulators_on_the_same_trace(demo, policy):
    made = routing_trace("random", demo.config)
    starts = [0, 30, 47, 90]
    trace = Trace(made.experts[:100], np.array([*starts, 100]), made.n_experts)
    runner = demo.runner.beside((8,) * 6, Policy.parse(policy))
    plan = Plan((), (10,), 3)
    ((found,),) = results([Bench(runner, Tokens(range(50)), plan, routing=trace)], plan)

    def replayed(n_runs: int) -> float:
        picks = np.concatenate([trace.experts[s : s + 10] for s in starts[:n_runs]])
        counts = simulate(Trace(picks, np.array([0, len(picks)]), trace.n_experts), 8, Policy.parse(policy))
        return sum(counts.hits), sum(counts.misses)

    runs = [found.first, *found.samples]
    for n in range(1, 5):
        assert (sum(r.hits for r in runs[:n]), sum(r.misses for r in runs[:n])) == replayed(n)
    assert found.first.hit_rate == replayed(1)[0] / sum(replayed(1))


def test_prompts_keep_the_router(demo):
    runner = demo.runner.beside((32,) * 6, Policy.parse("lru"))
    plan = Plan((20,), (), 1)
    ((found,),) = results([Bench(runner, Tokens(range(50)), plan, routing=routing_trace("repeat", demo.config))], plan)
    assert found.first.misses > 6 * 4
