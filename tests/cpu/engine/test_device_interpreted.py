"""The GPU runner on CPU tensors under Triton's interpreter: same picks and near the same logits as the CPU runner, at any placement."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hotset.config import SamplingParams  # noqa: E402
from hotset.engine import device  # noqa: E402
from hotset.engine.device import DeviceModel, DeviceRunner  # noqa: E402
from hotset.engine.host import HostModel, HostRunner  # noqa: E402
from hotset.engine.loading import LoadOptions, Source  # noqa: E402
from hotset.engine.page_locking import page_lock, relay_for  # noqa: E402
from hotset.engine.record import Drain, phase_counts  # noqa: E402
from hotset.engine.runner import Drawing  # noqa: E402
from hotset.engine.sampling import sample  # noqa: E402
from hotset.experts import waves  # noqa: E402
from hotset.experts.bank import ExpertBank  # noqa: E402
from hotset.experts.cache import ExpertCache  # noqa: E402
from hotset.experts.host_cache import HostCache  # noqa: E402
from hotset.experts.policy import Policy  # noqa: E402
from hotset.experts.simulate import replay_run, simulate  # noqa: E402
from hotset.experts.trace import Trace  # noqa: E402
from hotset.experts.trace_file import TraceHeader, TraceWriter  # noqa: E402
from hotset.experts.trace_reader import read_run  # noqa: E402
from hotset.gguf import open_gguf  # noqa: E402
from hotset.kernels.rows import BEGINS, REAL  # noqa: E402
from hotset.kernels.token_mask import pack  # noqa: E402
from hotset.model import device_ops, model_config  # noqa: E402
from hotset.model.batch import MAX_ROWS  # noqa: E402
from hotset.model.device_place import DevicePlace  # noqa: E402
from hotset.model.experts import expert_layouts  # noqa: E402
from hotset.model.host_place import HostPlace  # noqa: E402
from hotset.model.kv import DEFAULT, KVTypes  # noqa: E402
from hotset.model.loading import load_weights  # noqa: E402
from hotset.model.tensors import Tensors  # noqa: E402
from lockers import FakeLocker  # noqa: E402
from replayed import assert_as_replayed  # noqa: E402

Q8 = KVTypes("q8_0", "q8_0")
# The interpreter takes seconds for a chunk of rows: few tokens.
TOKENS = [3, 77, 5]


def make_source(path) -> Source:
    file = open_gguf(path)
    config = model_config(file.metadata)
    tensors = Tensors(file)
    return Source(file, config, tensors, expert_layouts(tensors, config), 64, LoadOptions(), lambda *_: None)


@pytest.fixture(scope="module")
def source(shared) -> Source:
    return make_source(shared / "golden/tiny/qwen3moe-q4_k_m.gguf")


def device_runner(
    source: Source,
    n_slots: int,
    policy: str = "lrfu:16",
    chunk_rows: int = 0,
    locked: float = 1,
    kv_types: KVTypes = DEFAULT,
) -> DeviceRunner:
    config = source.config
    source = make_source(source.file.path)
    bank = ExpertBank(source.spans, config.n_experts)
    source.fill(bank)
    page_lock(bank, FakeLocker(), int(locked * bank.n_bytes), 2, lambda _: None)
    relay = relay_for(bank, MAX_ROWS * config.n_picks, None)
    weights = load_weights(source.tensors, config, source.spans, DevicePlace("cpu"))
    shape = source.shape((n_slots,) * config.n_layers)
    cache = ExpertCache(shape, Policy.parse(policy), bank.base, "cpu", ring_steps=64, poison=True, relay=relay)
    model = DeviceModel(config, weights, bank, cache, torch.device("cpu"))
    runner = DeviceRunner(model, source.n_ctx, chunk_rows=chunk_rows, kv_types=kv_types)
    runner.chunk = 2  # the interpreter takes seconds for a chunk of eight
    return runner


def host_runner(source: Source, n_slots: int, kv_types: KVTypes = DEFAULT) -> HostRunner:
    config = source.config
    source = make_source(source.file.path)
    bank = ExpertBank(source.spans, config.n_experts)
    source.fill(bank)
    weights = load_weights(source.tensors, config, source.spans, HostPlace())
    cache = HostCache(source.shape((n_slots,) * config.n_layers), Policy.parse("lrfu:16"), ring_steps=64)
    return HostRunner(HostModel(config, weights, bank, cache), 2, kv_types)


@pytest.mark.parametrize(
    ("mode", "limit", "kv_types"), [("reference", 1e-5, DEFAULT), ("fast", 1e-2, DEFAULT), ("fast", 2e-2, Q8)], ids=str
)
def test_logits_are_those_of_the_cpu_runner(source, mode, limit, kv_types):
    got = device_runner(source, 3, kv_types=kv_types).logits(TOKENS, range(len(TOKENS)), mode, stepwise=False)
    expected = host_runner(source, 3, kv_types).logits(TOKENS, range(len(TOKENS)), mode, stepwise=False)
    assert np.linalg.norm(got - expected) <= limit * np.linalg.norm(expected)


def test_placement_and_chunks_change_no_bit(source, monkeypatch):
    tokens = TOKENS[:2]
    expected = device_runner(source, 6).logits(tokens, range(2), "fast", stepwise=False)
    for n_slots, policy, min_tail in ((0, "lru", 0), (2, "lrfu:16", device_ops.MIN_TAIL_BYTES)):
        monkeypatch.setattr(device_ops, "MIN_TAIL_BYTES", min_tail)
        got = device_runner(source, n_slots, policy).logits(tokens, range(2), "fast", stepwise=n_slots == 2)
        assert np.array_equal(got, expected)


def test_counts_are_those_of_the_policy_on_the_recorded_picks(source):
    runner = device_runner(source, 3)
    runner.logits(TOKENS, [], "fast", stepwise=False)
    cache = HostCache(runner.model.cache.shape, Policy.parse("lrfu:16"))
    for step in runner.model.cache.recorded_picks():
        for layer, picks in enumerate(step):
            real = (picks[:, 0] >= 0).astype(np.int32)
            cache.lookup(layer, np.where(picks < 0, 0, picks).astype(np.int32), real)
    assert runner.model.cache.stats() == cache.stats()


@pytest.mark.parametrize("policy", ["lru", "product"])
def test_a_recorded_run_is_replayed_to_the_same_counts(source, policy, tmp_path):
    runner = device_runner(source, 3, policy)
    runner.chunk = 1
    cache = runner.cache
    shape = cache.shape
    header = TraceHeader(
        "tiny", "qwen3moe", "00", "test", policy, shape.span_bytes, shape.n_experts, shape.n_slots, shape.k, shape.max_rows,
        weights=cache.recorded_weights() is not None,
    )  # fmt: skip
    session = runner.session(32)
    session.start(SamplingParams(temperature=0, max_tokens=3), seed=0, end_ids=frozenset())
    with TraceWriter(tmp_path / "run.trace", header) as writer:
        drain = Drain(cache, writer)
        for token in TOKENS[:2]:
            writer.answer(1)
            session.keep(0)
            session.feed([token])
            drain("prompt")
            for _ in range(3):
                session.next()
                drain("decode")
        stats = runner.stats()
        writer.counts({"prompt": phase_counts(stats.prompt), "decode": phase_counts(stats)})
    run = read_run(tmp_path / "run.trace")
    assert (run.phases.tolist(), run.weights) == ([0, 1, 1, 0, 1, 1], None)
    assert run.begins_answer.tolist() == [False, True, False] * 2
    assert replay_run(run) == run.counts
    assert_as_replayed(cache, [[REAL], [BEGINS], [REAL]] * 2)


def test_a_session_draws_what_the_reference_sampler_draws_from_its_logits(source):
    runner = device_runner(source, 3)
    runner.chunk = 1
    session = runner.session(32)
    params = SamplingParams(temperature=1.0, top_k=20)
    session.start(params, seed=7, end_ids=frozenset())
    session.feed(TOKENS[:1])
    drawn = [session.next().token for _ in range(2)]
    logits = runner.logits(session.tokens[:-1], range(2), "fast", stepwise=False)
    assert session.tokens == TOKENS[:1] + drawn
    assert drawn == [sample(logits[n - 1], params, session.tokens[:n], 7, n) for n in (1, 2)]


def test_a_routed_session_takes_the_picks_of_the_trace_and_counts_as_the_simulator(source):
    config = source.config
    rng = np.random.default_rng(5)
    picks = np.argsort(rng.random((9, config.n_layers, config.n_experts)))[..., : config.n_picks].astype(np.int16)
    runner = device_runner(source, 6).beside((3,) * config.n_layers, Policy.parse("lrfu:16"), bus_factor=2)
    runner.set_routing(picks)
    session = runner.session(32)
    session.start(SamplingParams(temperature=0, max_tokens=2), seed=0, end_ids=frozenset())
    session.begin(3, trace_at=8)
    for _ in range(2):
        session.next()
    window = Trace(picks[[8, 0]], np.array([0, 2]), config.n_experts)
    expected = simulate(window, 3, Policy.parse("lrfu:16"))
    stats = runner.model.cache.stats()
    assert (stats.hits, stats.misses, stats.overflows) == (expected.hits, expected.misses, expected.overflows)
    assert runner.stats().tokens == 2


def test_a_mask_is_asked_before_every_step_and_draws_what_the_cpu_runner_draws(source):
    params = SamplingParams(temperature=1.0, top_k=20)
    n_vocab = source.config.n_vocab
    drawn, asked = {}, {}
    for name, runner in (("device", device_runner(source, 3)), ("host", host_runner(source, 3))):
        asked[name] = []

        def mask(tokens, seen=asked[name]):
            seen.append(list(tokens))
            return pack(np.arange(n_vocab) % 7 == len(tokens))

        session = runner.session(32)
        session.start(params, seed=7, end_ids=frozenset(), mask=mask)
        session.feed(TOKENS[:1])
        drawn[name] = [session.next().token for _ in range(2)]
        assert asked[name] == [drawn[name][:n] for n in range(2)]
    assert drawn["device"] == drawn["host"]
    assert [token % 7 for token in drawn["host"]] == [0, 1]


def test_sequences_that_step_together_draw_what_the_reference_sampler_draws_from_their_logits(source):
    runner = device_runner(source, 3)
    runner.chunk = 1
    sequences = runner.sequences(2, 32)
    drawings = [Drawing(SamplingParams(temperature=1.0, top_k=20, max_tokens=2), seed, frozenset()) for seed in (7, 8)]
    for seq, drawing in enumerate(drawings):
        sequences.start(seq, drawing)
        sequences.feed(seq, TOKENS[seq : seq + 1], 1)
    for _ in range(2):
        sequences.step([0, 1])
    tokens = sequences.tokens[1]
    logits = runner.logits(tokens[:-1], range(2), "fast", stepwise=True)
    assert tokens == [TOKENS[1], *(sample(logits[n - 1], drawings[1].params, tokens[:n], 8, n) for n in (1, 2))]


@pytest.mark.parametrize(("n_slots", "kv_types", "limit"), [(0, DEFAULT, 3e-3), (2, Q8, 1e-2)], ids=str)
def test_long_prompts_stream_their_experts_and_come_near_the_cpu_runner(source, n_slots, kv_types, limit):
    # Nine tokens take the chunk path; two chunks give the bits of one.
    tokens = [*TOKENS, 120, 9, 9, 64, 1, 0]
    runner = device_runner(source, n_slots, chunk_rows=16, kv_types=kv_types)
    for token in TOKENS[:n_slots]:
        runner.logits([token], [0], "fast", stepwise=True)
    before = runner.model.cache.stats()
    got = runner.logits(tokens, [4, 8], "fast", stepwise=False)
    expected = host_runner(source, 3).logits(tokens, [4, 8], "reference", stepwise=False)
    assert np.linalg.norm(got - expected) <= limit * np.linalg.norm(expected)
    assert runner.model.cache.stats() == before
    prompt = runner.stats().prompt
    assert prompt.hits + prompt.misses > sum(before.hits) + sum(before.misses)


def test_no_bit_of_a_prompt_depends_on_what_comes_ahead_of_its_picks(source, monkeypatch):
    tokens, found, fetched = [*TOKENS, 120, 9, 9, 64, 1, 0], [], []
    span = max(s.n_bytes for s in source.spans)
    for everything in (True, False):
        monkeypatch.setattr(waves, "WAVE_BYTES", 2 * span)  # two experts of each layer come ahead, the rest in waves
        monkeypatch.setattr(device, "expects_all", lambda *_, answer=everything: answer)
        runner = device_runner(source, 1, chunk_rows=16)
        runner.logits([5], [0], "fast", stepwise=True)
        found.append(runner.logits(tokens, [8], "fast", stepwise=False))
        fetched.append(runner.stats().prompt.misses)
    assert np.isfinite(found[0]).all()
    assert np.array_equal(*found)
    assert fetched[0] >= fetched[1] > 0


def test_the_page_locked_share_changes_no_bit(source, monkeypatch):
    monkeypatch.setattr(device, "expects_all", lambda *_: False)
    # Nine tokens stream through the bounce buffer in waves, a step takes it layer by layer.
    tokens = [*TOKENS, 120, 9, 9, 64, 1, 0]
    found = []
    for locked in (1, 0.5, 0):
        runner = device_runner(source, 2, chunk_rows=16, locked=locked)
        assert (runner.model.bank.bounce is None) == (locked == 1)
        step = runner.logits(TOKENS[:1], [0], "fast", stepwise=True)
        found.append(np.concatenate([step, runner.logits(tokens, [8], "fast", stepwise=False)]))
    assert np.isfinite(found[0]).all()
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_compiling_reads_no_expert_and_leaves_nothing_behind(source):
    runner = device_runner(source, 2, chunk_rows=16)
    cache = runner.model.cache
    n_layers = cache.shape.n_layers
    cache.attach([0] * n_layers, None)  # whoever reads an expert now reads address 0
    runner.compile()
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.requests) == ((0,) * n_layers,) * 3
    assert all((cache.state(layer).slot_of_expert == -1).all() for layer in range(n_layers))
    assert runner.stats().prompt.tokens == 0
