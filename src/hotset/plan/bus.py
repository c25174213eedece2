"""How fast this machine's bus and GPU memory are, measured in the run that they are compared with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from hotset.experts.bank import LOCK_CHUNK
from hotset.kernels.fetch import fetch

if TYPE_CHECKING:
    from hotset.experts.bank import ExpertBank
    from hotset.experts.cache import ExpertCache

ROUNDS = 7
# Copies of one round: enough that starting and stopping do not show.
COPIES = 64
# Larger than any GPU's last cache, and two of them fit what the planner leaves free.
MEMORY_BYTES = 96 << 20
MEMORY_COPIES = 8


def median_seconds(work: Callable[[], None]) -> float:
    """Median time of some rounds of work on the GPU; a first one warms up."""
    seconds: list[float] = []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds[1:])


def median_rate(work: Callable[[], None], n_bytes: int) -> float:
    """Bytes per second of the median round."""
    return n_bytes / median_seconds(work)


def copy_starts(n_bytes: int, size: int) -> range:
    """Where copies of `size` bytes begin that stay within the first page-locked piece of a bank of `n_bytes`."""
    piece = min(n_bytes, LOCK_CHUNK)
    return range(0, piece - size + 1, size)[:COPIES]


def pinned_copy_rate(bank: ExpertBank, size: int, device: torch.device) -> float:
    """Bytes per second of copies of `size` bytes each from the page-locked bank to the GPU."""
    return copy_rate(torch.from_numpy(bank.data), copy_starts(bank.n_bytes, size), size, device)


def copy_rate(source: torch.Tensor, starts: Sequence[int], size: int, device: torch.device) -> float:
    """Bytes per second of copies of `size` bytes each from those places of a page-locked source to the GPU, at most COPIES of them."""
    target = torch.empty(size, dtype=torch.uint8, device=device)
    starts = starts[:COPIES]

    def copy_all() -> None:
        for start in starts:
            target.copy_(source[start : start + size], non_blocking=True)

    return median_rate(copy_all, len(starts) * size)


def pinned_copy_rates(bank: ExpertBank, device: torch.device) -> dict[int, float]:
    """Bytes per second by span size, for each size that the bank has."""
    return {size: pinned_copy_rate(bank, size, device) for size in sorted(set(bank.span_bytes))}


def mixed_rate(rates: dict[int, float], span_bytes: tuple[int, ...]) -> float:
    """Bytes per second where every layer misses as often as any other."""
    return sum(span_bytes) / sum(size / rates[size] for size in span_bytes)


def zero_copy_rate(cache: ExpertCache, n_spans: int, layer: int = 0) -> float:
    """Bytes per second of the fetch kernel bringing `n_spans` experts of a layer at once."""
    span, n_experts = cache.shape.span_bytes[layer], cache.shape.n_experts[layer]
    n = min(n_spans, n_experts)
    order = torch.randperm(n_experts, generator=torch.Generator().manual_seed(0))[:n]
    return kernel_copy_rate(cache.bank_base[layer], order.numpy() * span, span, cache.device)


def kernel_copy_rate(base: int, starts: NDArray[np.int64], span: int, device: torch.device) -> float:
    """Bytes per second of the fetch kernel bringing spans from those places behind address `base`, as the GPU sees it, at once."""
    n = len(starts)
    target = torch.empty(n * span, dtype=torch.uint8, device=device)
    source = torch.from_numpy(base + starts).to(device)
    addresses = target.data_ptr() + torch.arange(n, device=device) * span
    count = torch.tensor([n], dtype=torch.int32, device=device)
    return median_rate(partial(fetch, source, addresses, count, span), n * span)


def memory_rate(device: torch.device) -> float:
    """Bytes per second that the GPU's memory reads and writes together in a plain copy."""
    source = torch.zeros(MEMORY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy_all() -> None:
        for _ in range(MEMORY_COPIES):
            target.copy_(source)

    return median_rate(copy_all, 2 * MEMORY_BYTES * MEMORY_COPIES)
