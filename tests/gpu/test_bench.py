"""Recorded picks and several expert caches on a real GPU: counts as in the simulator, the same tokens, and ceilings that were measured."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

import hotset  # noqa: E402
from hotset.bench.routing import routing_trace  # noqa: E402
from hotset.bench.runner import Bench, Plan, Tokens, results  # noqa: E402
from hotset.cli import main  # noqa: E402
from hotset.experts.policy import Policy  # noqa: E402
from hotset.experts.simulate import simulate  # noqa: E402
from hotset.experts.trace import Trace  # noqa: E402
from hotset.plan.bus import memory_rate, pinned_copy_rates, zero_copy_rate  # noqa: E402


@pytest.fixture(scope="module")
def demo():
    return hotset.load("demo", device="cuda", expert_cache="off", n_ctx=512)


@pytest.mark.parametrize("policy", ["lrfu:16", "lru", "lfu", "static"])
@pytest.mark.parametrize("n_slots", [0, 3, 8, 32])
def test_hit_rates_in_the_bench_equal_the_simulators_on_the_same_trace(demo, policy, n_slots):
    made = routing_trace("random", demo.config)
    starts = [0, 70, 140, 230]
    trace = Trace(made.experts[:300], np.array([*starts, 300]), made.n_experts)
    runner = demo.runner.beside((n_slots,) * trace.n_layers, Policy.parse(policy))
    plan = Plan((), (60,), 3)
    run = Bench(runner, Tokens(range(50)), plan, routing=trace)
    run.warm_up()
    ((found,),) = results([run], plan)
    picks = np.concatenate([trace.experts[s : s + 60] for s in starts])
    expected = simulate(Trace(picks, np.array([0, len(picks)]), trace.n_experts), n_slots, Policy.parse(policy))
    runs = [found.first, *found.samples]
    assert (sum(r.hits for r in runs), sum(r.misses for r in runs)) == (sum(expected.hits), sum(expected.misses))


def drawn(runner, n=30):
    session = runner.session(128)
    session.start(hotset.SamplingParams(temperature=0, max_tokens=n), 0, frozenset())
    session.begin(7)
    return [session.next().token for _ in range(n)]


def test_captured_steps_follow_a_trace_and_the_router_again(demo):
    runner = demo.runner.beside((8,) * demo.config.n_layers, Policy.parse("lru"))
    seen = [drawn(runner)]
    for name in ("repeat", "random"):
        runner.set_routing(routing_trace(name, demo.config).experts)
        seen.append(drawn(runner))
        assert seen[-1] not in seen[:-1]
    runner.set_routing(None)
    assert drawn(runner) == seen[0]


def test_size_policy_and_a_slower_bus_change_no_token(demo):
    expected = drawn(demo.runner)
    for n_slots, policy, bus_factor in ((0, "lru", 1), (3, "lrfu:16", 2), (32, "static", 1), (8, "lfu", 4)):
        runner = demo.runner.beside((n_slots,) * demo.config.n_layers, Policy.parse(policy), bus_factor=bus_factor)
        assert drawn(runner) == expected
    assert drawn(demo.runner) == expected


def test_rates_of_this_machine_are_plausible(demo):
    model = demo.runner.model
    copies = pinned_copy_rates(model.bank, model.device)
    assert set(copies) == set(model.bank.span_bytes)
    assert all(1e8 < rate < 1e12 for rate in copies.values())
    assert 1e8 < zero_copy_rate(model.cache, 8) < 1e12
    assert memory_rate(model.device) > 5e10


def test_arms_share_a_loaded_model_and_end_in_a_verdict(capsys):
    arguments = ("-p", "64", "-n", "32", "-r", "2", "--routing", "random", "--bus-factor", "2")
    assert (
        main(["bench", "demo", "--device", "cuda", "--expert-cache", "25%,off", "--policy", "lru,static", *arguments])
        == 0
    )
    out, err = capsys.readouterr()
    rows = json.loads(out.splitlines()[-1])
    decode = [row for row in rows if row["kind"] == "tg"]
    assert [row["n_slots"][0] for row in decode] == [8, 8, 0, 32]
    for row in decode:
        assert row["ceiling_tokens_per_s"] > 0
        assert row["vram_peak_bytes"] > 0
        assert row["fetch_ms_per_token"] is not None
        assert row["prefetched_in_vain_per_token"] >= 0
        assert row["gpu_link"] is None or row["gpu_link"].startswith("PCIe")
    assert "verdict on tg32" in err
