from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.experts.cache import ExpertCache
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy
from hotset.experts.request import compiled_request
from hotset.experts.slots import CacheShape
from hotset.experts.streams import SideStream
from hotset.experts.trace import Trace
from hotset.kernels.fetch import fetch
from hotset.kernels.rows import BEGINS, PADDING, REAL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def pinned_bank(n_layers, n_experts, span_bytes):
    bank = torch.empty((n_layers, n_experts, span_bytes), dtype=torch.uint8, pin_memory=True)
    words = bank.view(torch.int32)
    words[:] = torch.arange(n_layers * n_experts, dtype=torch.int32).view(n_layers, n_experts, 1)
    return bank


def addresses(table, location):
    """Device addresses of locations [layers, picks] by the rows of the address table."""
    _, pool, overflow, span, n_slots = (column[:, None] for column in table.T)
    there = np.where(location < n_slots, pool + location * span, overflow + (location - n_slots) * span)
    return np.where(location < 0, 0, there)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "olmoe-1b-7b"])
@pytest.mark.parametrize(
    ("setting", "percent", "rows"),
    [
        ("lrfu:16", 25, 1),
        ("lrfu:16", 50, 4),
        ("lrfu:16", 25, 8),
        ("product", 25, 1),
        ("product", 37.5, 3),
        ("product", 25, 8),
        ("lru", 37.5, 1),
        ("lfu", 25, 2),
        ("static", 50, 1),
        ("lrfu:16", 0, 1),
    ],
)
def test_the_kernel_decides_500_tokens_of_all_layers_as_the_reference_does(shared, name, setting, percent, rows):
    trace = Trace.read(shared / "traces" / f"{name}.decode.npz")
    n_layers, k, steps = trace.n_layers, trace.k, 500 // rows
    shape = CacheShape(
        (256,) * n_layers, (trace.n_experts,) * n_layers, (int(trace.n_experts * percent / 100),) * n_layers, k, rows
    )
    bank = pinned_bank(n_layers, trace.n_experts, 256)
    policy = Policy.parse(setting)
    cache = ExpertCache(shape, policy, [layer.data_ptr() for layer in bank], "cuda", ring_steps=steps, poison=True)
    rng = np.random.default_rng(0)
    starts = rng.integers(0, trace.n_tokens - steps, rows)
    picks = trace.experts[starts + np.arange(steps)[:, None]].astype(np.int32)  # [steps, rows, layers, k]
    picks = np.ascontiguousarray(picks.transpose(0, 2, 1, 3))
    mask = np.where(rng.random((steps, rows)) < 0.1, BEGINS, REAL).astype(np.int32)
    mask[::20] = BEGINS
    mask[:, 1:] *= rng.random((steps, rows - 1)) < 0.8
    on_device, mask_there = torch.from_numpy(picks).cuda(), torch.from_numpy(mask).cuda()

    seen = torch.empty((steps, n_layers, rows * k), dtype=torch.int64, device="cuda")
    slots, scores = (
        torch.empty((steps, *like.shape), dtype=torch.int32, device="cuda")
        for like in (cache._buffers.slot_of, cache._buffers.scores)
    )
    for step in range(steps):
        for layer in range(n_layers):
            cache.lookup(layer, on_device[step, layer], mask_there[step])
            cache.fetch(layer)
            seen[step, layer] = cache.address
        slots[step], scores[step] = cache._buffers.slot_of, cache._buffers.scores

    states = [LayerState(policy, trace.n_experts, n, rows, run=compiled_request()) for n in shape.n_slots]
    table = cache._buffers.table.cpu().numpy()
    totals = np.zeros((4, n_layers), int)
    seen, slots, scores = (log.cpu().numpy() for log in (seen, slots, scores))
    for step in range(steps):
        location = np.empty((n_layers, rows * k), np.int64)
        for layer, state in enumerate(states):
            decision = state.request(picks[step, layer], mask[step])
            location[layer] = decision.location.ravel()
            totals[:, layer] += decision.hits, decision.misses, decision.overflows, 1
            assert np.array_equal(slots[step, layer, : trace.n_experts], state.slot_of_expert)
            assert scores[step, layer, :, : trace.n_experts].tobytes() == state.scores.tobytes()
        assert np.array_equal(seen[step], addresses(table, location))
    stats = cache.stats()
    assert totals.tolist() == [list(c) for c in (stats.hits, stats.misses, stats.overflows, stats.requests)]
    expected = np.where(mask[:, None, :, None] != PADDING, picks, -1)
    assert np.array_equal(cache.recorded_picks(), expected)
    for layer, state in enumerate(states):
        held = state.expert_of_slot[state.expert_of_slot >= 0]
        start, span = cache._pool_base()[layer] - cache._pool.data_ptr(), shape.span_bytes[layer]
        pool = cache._pool[start : start + len(held) * span].view(torch.int32).cpu().numpy().reshape(-1, 64)
        assert np.array_equal(pool, np.repeat(layer * trace.n_experts + held[:, None], 64, axis=1))


def test_lookup_and_fetch_replay_from_a_graph():
    shape = CacheShape((1024, 512), (16, 16), (4, 6), k=2, max_rows=2)
    banks = [pinned_bank(1, 16, span)[0] for span in shape.span_bytes]
    cache = ExpertCache(shape, Policy(), [bank.data_ptr() for bank in banks], "cuda", poison=True)
    picks = torch.zeros((2, 2, 2), dtype=torch.int32, device="cuda")
    mask = torch.ones(2, dtype=torch.int32, device="cuda")
    seen = torch.empty((2, 4), dtype=torch.int64, device="cuda")

    def step():
        for layer in range(2):
            cache.lookup(layer, picks[layer], mask)
            cache.fetch(layer)
            seen[layer] = cache.address

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    cache.reset()
    states = [LayerState(Policy(), 16, n, 2) for n in shape.n_slots]
    table = cache._buffers.table.cpu().numpy()
    rng = np.random.default_rng(1)
    for _ in range(50):
        batch = np.array([[rng.permutation(16)[:2] for _ in range(2)] for _ in range(2)], np.int32)
        picks.copy_(torch.from_numpy(batch))
        graph.replay()
        location = np.array([state.request(batch[layer]).location.ravel() for layer, state in enumerate(states)])
        assert np.array_equal(seen.cpu().numpy(), addresses(table, location.astype(np.int64)))


@pytest.mark.parametrize("n", [0, 1, 3, 8])
@pytest.mark.parametrize("span_bytes", [256, 2_654_208, 256 * 10_007])
def test_spans_arrive_from_page_locked_memory(n, span_bytes):
    bank = torch.empty((8, span_bytes), dtype=torch.uint8, pin_memory=True)
    bank.view(torch.int32).random_(generator=torch.Generator().manual_seed(0))
    pool = torch.full((9, span_bytes), 0xFF, dtype=torch.uint8, device="cuda")
    slots = [8, 1, 6, 0, 3, 7, 2, 5][:n]
    source = torch.tensor([row.data_ptr() for row in bank], dtype=torch.int64, device="cuda")
    target = torch.tensor([pool[slot].data_ptr() for slot in slots] or [0], dtype=torch.int64, device="cuda")
    fetch(source, target, torch.tensor([n], dtype=torch.int32, device="cuda"), span_bytes)
    expected = torch.full((9, span_bytes), 0xFF, dtype=torch.uint8)
    expected[slots] = bank[:n]
    assert torch.equal(pool.cpu(), expected)


def test_a_side_stream_is_never_the_one_it_forks_from():
    # PyTorch has 32 streams and deals them out in turns.
    first = SideStream(torch.device("cuda"))
    second = SideStream(torch.device("cuda"), apart=first)
    for _ in range(100):
        current = torch.cuda.Stream()
        with torch.cuda.stream(current):
            with first.fork():
                one = torch.cuda.current_stream()
            with second.fork():
                two = torch.cuda.current_stream()
            first.join()
            second.join()
        assert len({current.cuda_stream, one.cuda_stream, two.cuda_stream}) == 3
