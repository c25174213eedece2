"""VRAM on a real GPU: the budget holds whatever is asked of the engine, and a shortage takes slots instead of failing."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

import hotset  # noqa: E402
from hotset.engine.device_loading import Budget  # noqa: E402
from hotset.engine.memory import GIB, MIB, SLOT_ROUNDING  # noqa: E402


def held_by_others(engine) -> int:
    """Bytes on the GPU past torch's allocator: they only grow."""
    return engine.memory.usage.context


@pytest.mark.parametrize("vram", [1 * GIB, 2 * GIB])
def test_the_peak_is_within_the_budget_and_the_table_adds_up(vram):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    engine = hotset.load("demo", device="cuda", vram=vram, n_ctx=2048)
    torch.cuda.reset_peak_memory_stats()
    tokens = np.random.default_rng(0).integers(3, engine.config.n_vocab, 2000).tolist()
    engine.generate(tokens, max_tokens=20, temperature=0)
    engine.logits(tokens, mode="fast")
    engine.logits(tokens[:64], mode="reference")
    plan, usage = engine.memory, engine.memory.usage
    assert torch.cuda.max_memory_reserved() - before + held_by_others(engine) <= vram
    assert usage.driver <= plan.total("gpu") - plan.bytes_of("reserve") <= vram - plan.bytes_of("reserve")
    # The plan counts what rounding may take of the slots at worst, and a page more.
    assert plan.total("gpu") - plan.bytes_of("reserve") - usage.driver <= SLOT_ROUNDING + 2 * MIB


def blocks_until_full(n_bytes):
    while True:
        try:
            yield torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            return


def test_a_shortage_takes_slots_and_changes_no_bit(shared):
    engine = hotset.load(shared / "models/lab-moe-Q4_K_M.gguf", device="cuda", expert_cache="100%", n_ctx=512)
    tokens = np.random.default_rng(1).integers(3, engine.config.n_vocab, 300).tolist()
    expected = engine.logits(tokens, mode="fast")
    slots = sum(engine.runner.model.cache.shape.n_slots)
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info()
    # No room but for what is held now, and what the allocator has in store is taken too.
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    taken = [*blocks_until_full(2 * MIB), *blocks_until_full(MIB // 2), *blocks_until_full(MIB // 64)]
    assert taken
    try:
        with pytest.warns(UserWarning, match="the GPU ran out of memory: the expert cache gave back"):
            got = engine.logits(tokens, mode="fast")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert np.array_equal(got, expected)
    assert sum(engine.runner.model.cache.shape.n_slots) < slots


def test_a_budget_measures_what_is_taken_since():
    torch.cuda.empty_cache()
    device = torch.device("cuda", torch.cuda.current_device())
    free, _ = torch.cuda.mem_get_info()
    budget = Budget(GIB, free, device, torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    usage = budget.usage()
    assert (usage.reserved, usage.allocated) == (kept.numel(), kept.numel())
    assert usage.driver >= kept.numel()
