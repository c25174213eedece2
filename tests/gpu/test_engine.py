"""The whole engine on a real GPU: llama.cpp's goldens, the CPU engine as oracle, any placement, batches, counts, memory."""

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

import hotset  # noqa: E402
from hotset.engine.device import DeviceRunner  # noqa: E402
from hotset.engine.device_session import DeviceSession  # noqa: E402
from hotset.engine.record import record  # noqa: E402
from hotset.engine.sampling import sample  # noqa: E402
from hotset.experts.cache import ExpertCache  # noqa: E402
from hotset.experts.host_cache import HostCache  # noqa: E402
from hotset.experts.policy import Policy  # noqa: E402
from hotset.experts.simulate import replay_run  # noqa: E402
from hotset.experts.trace_reader import read_run  # noqa: E402
from hotset.kernels.prefetch import PREFETCH_LAUNCH  # noqa: E402
from hotset.kernels.rows import BEGINS, REAL  # noqa: E402
from hotset.kernels.token_mask import pack  # noqa: E402
from hotset.model import device_ops  # noqa: E402
from hotset.model.device_ops import DeviceBatch  # noqa: E402
from replayed import assert_as_replayed  # noqa: E402

NAMES = ("demo", "lab")


@pytest.fixture(scope="module")
def load(shared):
    engines = {}

    def get(name: str, **options):
        key = (name, *sorted(options.items()))
        if key not in engines:
            path = shared / f"models/{name}-moe-Q4_K_M.gguf"
            engines[key] = hotset.load(path, **({"device": "cuda", "expert_cache": "25%"} | options))
        return engines[key]

    return get


def relative(a, b, axis=None):
    return np.linalg.norm(a - b, axis=axis) / np.linalg.norm(b, axis=axis)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_logits_are_within_the_bars_of_the_goldens(load, shared, name, mode):
    golden = np.load(shared / f"golden/{name}-moe-Q4_K_M.logits.npz")
    for i in range(3):
        expected = golden[f"logits_{i}"].astype(np.float32)
        got = load(name).logits(golden[f"tokens_{i}"].tolist(), mode=mode)
        error = relative(got, expected)
        print(name, mode, i, f"rms {error:.4f} median {np.median(relative(got, expected, 1)):.4f}")
        assert error <= (0.04 if mode == "reference" else 0.07)
        if mode == "fast":
            assert np.median(relative(got, expected, 1)) <= 0.03
        top = np.sort(expected, 1)
        clear = top[:, -1] - top[:, -2] > 0.5
        assert (got.argmax(1) == expected.argmax(1))[clear].all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("mode", "gap"), [("reference", 0.25), ("fast", 0.5)])
def test_golden_continuations_are_predicted(load, shared, name, mode, gap):
    for case in json.loads((shared / f"golden/{name}-moe-Q4_K_M.greedy.json").read_text()):
        tokens = case["prompt_ids"] + case["greedy"]
        first = len(case["prompt_ids"]) - 1
        wanted = range(first, len(tokens) - 1)
        got = load(name).logits(tokens, mode=mode, wanted=wanted).argmax(1)
        clear = np.array(case["top2_gap"][: len(got)]) >= gap
        assert (got == np.array(case["greedy"]))[clear].all()


@pytest.mark.parametrize("name", NAMES)
def test_reference_mode_agrees_with_the_cpu(load, shared, name):
    tokens = np.load(shared / f"golden/{name}-moe-Q4_K_M.logits.npz")["tokens_1"].tolist()
    got, expected = (load(name, device=d).logits(tokens, mode="reference") for d in ("cuda", "cpu"))
    assert relative(got, expected) <= 1e-3


def with_cache(engine, n_slots, policy="lrfu:16", *, prefetch=True, bus_factor=1, **options):
    """Another runner on the same weights and experts."""
    model = engine.runner.model
    shape = replace(model.cache.shape, n_slots=(n_slots,) * engine.config.n_layers)
    cache = ExpertCache(
        shape,
        Policy.parse(policy),
        model.bank.base,
        model.device,
        poison=True,
        prefetch=PREFETCH_LAUNCH if prefetch else None,
        bus_factor=bus_factor,
    )
    return DeviceRunner(replace(model, cache=cache), 128, **{"chunk_rows": 64} | options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_placement_policy_and_chunks_change_no_bit(load, shared, name, mode, monkeypatch):
    engine = load(name)
    tokens = np.load(shared / f"golden/{name}-moe-Q4_K_M.logits.npz")["tokens_0"].tolist()[:40]
    positions = range(len(tokens))
    at_once = engine.logits(tokens, mode=mode)
    stepwise = engine.logits(tokens, mode=mode, stepwise=True)
    if mode == "reference":
        assert np.array_equal(at_once, stepwise)
    k, e = engine.config.n_picks, engine.config.n_experts
    for n_slots in (0, 1, k, k + 1, e // 2, e):
        for policy in ("lru", "lfu", "lrfu:16"):
            # These models' spans are small: only so do misses come in two parts.
            monkeypatch.setattr(device_ops, "MIN_TAIL_BYTES", 0 if policy == "lfu" else 256 << 10)
            runner = with_cache(engine, n_slots, policy, chunk_rows=16 if policy == "lru" else 64)
            assert np.array_equal(runner.logits(tokens, positions, mode, stepwise=True), stepwise), (n_slots, policy)
            assert np.array_equal(runner.logits(tokens, positions, mode, stepwise=False), at_once), (n_slots, policy)


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_step_draws_what_single_launches_draw(load, name):
    engine = load(name)
    prompt = engine.tokenize("The Debian installer is")
    for temperature in (0, 1):
        expected = engine.generate(prompt, max_tokens=40, temperature=temperature, seed=3).tokens
        session = DeviceSession(with_cache(engine, 3, use_graphs=False), 128)
        assert (
            engine.generate(prompt, session=session, max_tokens=40, temperature=temperature, seed=3).tokens == expected
        )


@pytest.mark.parametrize("bus_factor", [1, 16])
def test_experts_that_come_ahead_change_no_token(load, bus_factor):
    engine = load("lab")
    prompt = engine.tokenize("The Debian installer is")
    for n_slots in (0, 3, 16, 40):
        drawn = []
        for prefetch in (False, True):
            for use_graphs in (True, False):
                runner = with_cache(engine, n_slots, prefetch=prefetch, bus_factor=bus_factor, use_graphs=use_graphs)
                session = DeviceSession(runner, 256)
                tokens = engine.generate(prompt, session=session, max_tokens=200, temperature=1, seed=3).tokens
                counts = runner.cache.stats()
                drawn.append((tokens, counts.hits, counts.misses))
                ahead = runner.cache.prefetched()
                assert (ahead is not None) == prefetch
                if ahead:
                    assert ahead.needed > 0
                    assert ahead.in_vain >= 0
        assert all(each == drawn[0] for each in drawn)


def test_sequences_that_step_together_draw_what_each_draws_alone(load):
    engine = load("demo")
    runner = with_cache(engine, 8)
    prompts = [engine.tokenize(t) for t in ("static int", "The Debian installer is", "import os")]
    params = [hotset.SamplingParams(temperature=t) for t in (0.7, 1.0, 0.2)]

    def run(which):
        seat = runner.seat(len(which))
        for row, i in enumerate(which):
            for position, token in enumerate(prompts[i][:-1]):
                runner.forward(seat.ops, DeviceBatch(runner.rows([token], [position], [row])))
            seat.place(row, prompts[i], params[i], i, ())
        out = []
        for _ in range(20):
            seat.step()
            out.append([token for token, _ in seat.read()])
        return np.array(out)

    together = run([0, 1, 2])
    for i in range(3):
        assert np.array_equal(run([i])[:, 0], together[:, i])


def engine_path(shared, name):
    return shared / f"models/{name}-moe-Q4_K_M.gguf"


@pytest.mark.parametrize("mode", ["reference", "fast"])
@pytest.mark.parametrize("m", [2, 3, 8])
def test_rows_of_a_batch_are_as_if_alone(load, mode, m):
    engine = load("demo")
    runner = engine.runner
    rng = np.random.default_rng(m)
    tokens = rng.integers(0, engine.config.n_vocab, (6, m)).tolist()

    def run(columns):
        ops = runner.ops(runner.kv(16, mode, len(columns)), mode)
        out = []
        for position, row in enumerate(tokens):
            rows = runner.rows([row[c] for c in columns], [position] * len(columns), range(len(columns)))
            out.append(runner.forward(ops, DeviceBatch(rows)).cpu().numpy())
        return np.stack(out)

    together = run(range(m))
    for c in range(m):
        assert np.array_equal(run([c])[:, 0], together[:, c])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_slots", [0, 3, 8, 20])
def test_counts_are_those_of_the_reference_policy_on_the_recorded_picks(shared, name, n_slots):
    engine = hotset.load(engine_path(shared, name), device="cuda", expert_cache=f"{n_slots}slots", record_steps=400)
    engine.generate("The Debian installer is", max_tokens=100, temperature=0)
    cache = engine.runner.model.cache
    torch.cuda.synchronize()
    replay = HostCache(cache.shape, Policy.parse("lrfu:16"))
    for step in cache.recorded_picks():
        for layer, picks in enumerate(step):
            real = (picks[:, 0] >= 0).astype(np.int32)
            replay.lookup(layer, np.where(picks < 0, 0, picks).astype(np.int32), real)
    assert cache.stats() == replay.stats()
    stats = engine.stats()
    assert stats.hits + stats.prompt.hits == sum(replay.stats().hits)
    assert stats.bytes_fetched + stats.prompt.bytes_fetched == replay.stats().bytes_fetched


@pytest.mark.parametrize("graph", [True, False])
def test_answers_begin_for_product_as_the_recorded_run_says(shared, graph, tmp_path):
    engine = hotset.load(
        engine_path(shared, "demo"), device="cuda", expert_cache="25%", policy="product", record_steps=400, graph=graph
    )
    prompts = [engine.tokenize(t) for t in ("static int", "The Debian installer is one of many that", "import os")]
    sampling = hotset.SamplingParams(temperature=0.8, seed=5, max_tokens=31)
    record(engine, prompts, tmp_path / "run.trace", model_hash="00", n_decode=30, sampling=sampling)
    run = read_run(tmp_path / "run.trace")
    assert run.begins_answer.sum() == len(prompts)
    assert replay_run(run) == run.counts
    marks = [
        [BEGINS if begins else REAL for begins in run.begins_answer[a:b]]
        for a, b in zip(run.starts[:-1], run.starts[1:], strict=True)
    ]
    assert_as_replayed(engine.runner.cache, marks)


def test_sampling_on_the_device_is_the_reference(load):
    engine = load("demo")
    prompt = engine.tokenize("static int")
    params = hotset.SamplingParams(temperature=0.9, top_k=50, seed=11, repeat_penalty=1.1)
    result = engine.generate(prompt, max_tokens=60, temperature=0.9, top_k=50, seed=11, repeat_penalty=1.1)
    again = engine.generate(prompt, max_tokens=60, temperature=0.9, top_k=50, seed=11, repeat_penalty=1.1)
    assert result.tokens == again.tokens
    tokens = [*prompt, *result.tokens]
    logits = engine.logits(tokens, mode="fast", stepwise=True)
    for i in range(len(prompt), len(tokens)):
        assert sample(logits[i - 1], params, tokens[:i], 11, i) == tokens[i]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_masked_texts_are_the_reference_samplers_and_no_step_is_wasted(load, temperature):
    engine = load("demo")
    prompt = engine.tokenize("static int")
    params = hotset.SamplingParams(temperature=temperature, seed=5)

    def mask(tokens):
        return pack(np.arange(engine.config.n_vocab) % 3 == len(tokens) % 3)

    before = engine.stats().unused_steps
    result = engine.generate(prompt, mask=mask, max_tokens=30, temperature=temperature, seed=5)
    assert engine.stats().unused_steps == before
    tokens = [*prompt, *result.tokens]
    logits = engine.logits(tokens, mode="fast", stepwise=True)
    for n in range(len(result.tokens)):
        at = len(prompt) + n
        assert sample(logits[at - 1], params, tokens[:at], 5, at, mask(result.tokens[:n])) == tokens[at]


def test_keys_and_values_in_q8_0_stay_close_and_step_as_they_should(load):
    half, q8 = load("demo"), load("demo", cache_type_k="q8_0", cache_type_v="q8_0")
    tokens = half.tokenize("The Debian installer is a program that sets up a system, and so it asks for a language.")
    assert q8.memory.bytes_of("KV cache") * 64 == half.memory.bytes_of("KV cache") * 34
    for stepwise in (False, True):
        expected, got = (m.logits(tokens, stepwise=stepwise) for m in (half, q8))
        assert 0 < np.median(relative(got, expected, 1)) <= 0.03
    assert np.array_equal(q8.logits(tokens, mode="reference"), half.logits(tokens, mode="reference"))
    result = q8.generate(tokens, max_tokens=20, temperature=0)
    following = [*tokens, *result.tokens]
    logits = q8.logits(following, stepwise=True)
    top = np.sort(logits, 1)
    for at in range(len(tokens), len(following)):
        if top[at - 1, -1] - top[at - 1, -2] > 0.5:
            assert logits[at - 1].argmax() == following[at]


def test_vram_holds():
    engine = hotset.load("demo", device="cuda", vram="2GiB")
    engine.generate("static int", max_tokens=20, temperature=0)
    assert engine.memory.budget == 2 << 30
    assert engine.memory.total("gpu") <= 2 << 30
    context = engine.memory.bytes_of("CUDA context")
    assert torch.cuda.max_memory_reserved() + context <= 2 << 30
