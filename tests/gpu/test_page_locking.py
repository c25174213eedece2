"""Page-locking refused, in part or as a whole: the same logits and tokens, through the same captured step."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

import hotset  # noqa: E402
from hotset.engine.cuda import CudaLocker  # noqa: E402
from hotset.experts import bank as bank_module  # noqa: E402
from hotset.experts import bounce as bounce_module  # noqa: E402

NAMES = ("demo", "lab")


def results(path, **options):
    engine = hotset.load(path, device="cuda", n_ctx=512, **({"expert_cache": "20%"} | options))
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, engine.config.n_vocab, 200).tolist()
    found = {
        "steps": engine.logits(tokens[:30], mode="fast", stepwise=True),
        "chunk": engine.logits(tokens, mode="fast"),
        "reference": engine.logits(tokens[:20], mode="reference"),
    }
    for temperature in (0, 1):
        text = engine.generate(tokens[:5], max_tokens=60, temperature=temperature, seed=1)
        found[f"tokens at {temperature}"] = np.array(text.tokens)
    bank = engine.runner.model.bank
    return found, bank.locked_bytes / bank.n_bytes, engine.notes, engine.stats()


def assert_same(found, expected):
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name


@pytest.fixture(scope="module")
def whole(shared):
    return {name: results(shared / f"models/{name}-moe-Q4_K_M.gguf") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize("options", [{}, {"graph": False}, {"policy": "static"}], ids=["graph", "no graph", "static"])
def test_the_page_locked_share_changes_no_bit(shared, whole, name, share, options):
    expected, locked, notes, stats = whole[name]
    assert locked == 1
    assert not any("page-locked" in note for note in notes)
    path = shared / f"models/{name}-moe-Q4_K_M.gguf"
    limit = "off" if share == 0 else int(share * hotset.load(path, device="cpu").memory.bytes_of("experts"))
    found, locked, notes, stats_there = results(path, page_lock=limit, **options)
    assert share - 0.01 <= locked <= share
    assert sum("MiB of the experts are page-locked (as asked)" in note for note in notes) == 1
    assert_same(found, expected)
    if not options:
        assert (stats_there.hits, stats_there.misses) == (stats.hits, stats.misses)


@pytest.mark.parametrize("n_spans", [1, 3])
def test_a_bounce_buffer_of_few_spans_takes_several_rounds(shared, whole, n_spans, monkeypatch):
    path = shared / "models/demo-moe-Q4_K_M.gguf"
    span = max(hotset.load(path, device="cpu").runner.model.bank.span_bytes)
    monkeypatch.setattr(bounce_module, "RELAY_BYTES", n_spans * span)
    found, locked, _, _ = results(path, page_lock="off")
    assert locked == 0
    assert_same(found, whole["demo"][0])


def test_a_driver_that_refuses_after_a_while_leaves_the_rest_to_the_host(shared, whole, monkeypatch):
    lock, calls = CudaLocker.lock, []

    def refuse_the_fourth(self, start, n_bytes):
        calls.append(start)
        return len(calls) != 4 and lock(self, start, n_bytes)

    monkeypatch.setattr(bank_module, "LOCK_CHUNK", 1 << 20)
    monkeypatch.setattr(CudaLocker, "lock", refuse_the_fourth)
    found, locked, notes, _ = results(shared / "models/demo-moe-Q4_K_M.gguf")
    assert 0 < locked < 1
    assert any("the driver refused more" in note for note in notes)
    assert_same(found, whole["demo"][0])


def test_a_real_refusal_is_no_error_of_the_next_kernel():
    locker = CudaLocker(bank_driver())
    data = np.zeros(1 << 20, np.uint8)
    start = -(-data.ctypes.data // 4096) * 4096
    assert locker.lock(start, 4096)
    assert not locker.lock(start, 4096)
    torch.ones(4, device="cuda").sum().item()
    torch.cuda.synchronize()
    locker.unlock(start)


def bank_driver():
    from hotset.engine.cuda import driver_library

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    return driver_library()
