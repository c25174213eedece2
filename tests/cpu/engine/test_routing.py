"""Recorded picks in the router's place, and several expert caches on one loaded model."""

import numpy as np
import pytest

from hotset.bench.routing import routing_trace
from hotset.config import SamplingParams
from hotset.errors import InputError
from hotset.experts.policy import Policy
from hotset.experts.simulate import simulate
from hotset.experts.trace import Trace

PARAMS = SamplingParams(temperature=0, max_tokens=20)


def run(runner, n: int, *, trace_at: int = 0) -> list[int]:
    """Decode n tokens from a session without a prompt."""
    session = runner.session(32)
    session.start(PARAMS, 0, frozenset())
    session.begin(7, trace_at=trace_at)
    return [session.next().token for _ in range(n)]


@pytest.mark.parametrize("n_slots", [0, 3, 8, 32])
@pytest.mark.parametrize("policy", ["lrfu:16", "product", "lru", "static"])
def test_a_routed_run_counts_exactly_what_the_simulator_counts(demo, n_slots, policy):
    trace = routing_trace("random", demo.config)
    runner = demo.runner.beside((n_slots,) * trace.n_layers, Policy.parse(policy))
    runner.set_routing(trace.experts)
    runner.reset_cache()
    run(runner, 12, trace_at=100)
    window = Trace(trace.experts[100:112], np.array([0, 12]), trace.n_experts)
    expected = simulate(window, n_slots, Policy.parse(policy))
    stats = runner.stats()
    assert [layer.hits for layer in stats.layers] == list(expected.hits)
    assert [layer.misses for layer in stats.layers] == list(expected.misses)
    assert [layer.overflows for layer in stats.layers] == list(expected.overflows)
    assert (stats.tokens, stats.prompt.tokens) == (12, 0)


def test_a_trace_begins_again_where_it_ends(demo):
    trace = routing_trace("random", demo.config)
    runner = demo.runner.beside((8,) * trace.n_layers, Policy.parse("lru"))
    runner.set_routing(trace.experts[:4])
    counts = []
    for trace_at in (2, 6, 10):
        runner.reset_cache()
        run(runner, 9, trace_at=trace_at)
        counts.append(runner.stats().layers)
    assert counts[0] == counts[1] == counts[2]
    assert sum(layer.hits for layer in counts[0]) > 0


def test_without_routing_the_router_picks_again(demo):
    runner = demo.runner.beside(demo.runner.shape.n_slots, Policy.parse("lru"))
    expected = run(runner, 6)
    runner.set_routing(routing_trace("repeat", demo.config).experts)
    assert run(runner, 6) != expected
    runner.set_routing(None)
    assert run(runner, 6) == expected


def test_a_session_that_begins_draws_what_a_prompt_of_one_token_draws(demo):
    session = demo.runner.session(32)
    session.start(PARAMS, 0, frozenset())
    session.feed([7])
    assert [session.next().token for _ in range(6)] == run(demo.runner, 6)


def test_runners_beside_each_other_count_apart_and_give_the_same_logits(demo, some_tokens):
    tokens = some_tokens(6)
    few = demo.runner.beside((2,) * demo.config.n_layers, Policy.parse("lru"))
    many = demo.runner.beside((16,) * demo.config.n_layers, Policy.parse("lfu"), threads=1)
    logits = [r.logits(tokens, range(6), "fast", stepwise=True) for r in (few, many, few)]
    assert np.array_equal(logits[0], logits[1])
    assert few.stats().prompt.hits + few.stats().prompt.misses == 2 * (
        many.stats().prompt.hits + many.stats().prompt.misses
    )
    assert (few.stats().policy, many.stats().policy, many.threads) == ("lru", "lfu", 1)


def test_a_slower_bus_is_an_error_where_there_is_none(demo):
    with pytest.raises(InputError, match="bus factor 2"):
        demo.runner.beside(demo.runner.shape.n_slots, Policy.parse("lru"), bus_factor=2)
