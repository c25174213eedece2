"""Measure this machine: what `hotset doctor` runs once."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hotset.engine.cuda import CudaLocker, address_of, cuda_problem, driver_library
from hotset.engine.nvml import gpus
from hotset.host.pages import own_pages
from hotset.host.ram import available_bytes
from hotset.host.threads import checked_threads
from hotset.plan.dram import BUFFER_BYTES, buffer, read_rate
from hotset.plan.hardware import GpuFigures, Machine, cpu_name, geometric, ram_bytes

if TYPE_CHECKING:
    import torch

    from hotset.engine.nvml import GpuInfo
    from hotset.experts.bounce import Locker

MIB = 1 << 20
COPY_SIZES = (64 << 10, 256 << 10, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
# One expert of a large model, and how many a token may miss in a layer.
SPAN_BYTES = 2_727_936
SPANS_AT_ONCE = (1, 2, 4, 8)
PINNED_BYTES = 256 * MIB
LOCK_PIECE = 256 * MIB
# Enough to see whether a limit is set; to lock all of a large memory takes many seconds.
LOCK_TRIED = 16 << 30
LAUNCHES = 1000
GRAPH_KERNELS = 200
TRIPS = 200

Progress = Callable[[str], None]


def measure_machine(progress: Progress = lambda _: None) -> Machine:
    """Everything that can be measured here; what cannot is named in `missing`."""
    threads = checked_threads(None)
    progress(f"memory, read with up to {threads} threads")
    words = buffer(BUFFER_BYTES)
    dram = {n: read_rate(words, n) for n in geometric(1, threads, 2)}
    del words
    gpu, missing = _measure_gpu(progress)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Machine(
        cpu=cpu_name(),
        cores=threads,
        ram_bytes=ram_bytes(),
        memlock_bytes=None if limit == resource.RLIM_INFINITY else limit,
        dram=dram,
        gpu=gpu,
        missing=missing,
    )


def _measure_gpu(progress: Progress) -> tuple[GpuFigures | None, dict[str, str]]:
    problem = cuda_problem()
    if problem is not None:
        return None, {"GPU, bus, launches, page-locking": str(problem)}
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(device)
    progress(f"copies to {properties.name}")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.zeros(1, device=device)  # makes the context that the locker wants
    locker = CudaLocker(driver_library())
    pinned, zero = _copy_rates(device, locker)
    # Asked right after the copies, for an idle link may have slowed down.
    info = _info_of(address_of(properties))
    progress("launches, round trips and page-locking")
    tried = min(LOCK_TRIED, available_bytes() // 2) // LOCK_PIECE * LOCK_PIECE
    figures = GpuFigures(
        name=properties.name,
        capability=(properties.major, properties.minor),
        vram_bytes=properties.total_memory,
        link=info.link if info else None,
        best_link=info.best_link if info else None,
        pinned_copy=pinned,
        zero_copy=zero,
        memory=_memory_rate(device),
        launch_s=launch_seconds(device),
        graph_launch_s=graph_launch_seconds(device),
        round_trip_s=round_trip_seconds(device),
        page_locked_bytes=page_lockable(locker, tried),
        page_lock_tried=tried,
    )
    missing = {} if info else {"PCIe generation and width": "the driver's management library (NVML) does not answer"}
    return figures, missing


def _info_of(address: str) -> GpuInfo | None:
    return next((gpu for gpu in gpus() if gpu.address == address), None)


def _copy_rates(device: torch.device, locker: Locker) -> tuple[dict[int, float], dict[int, float]]:
    """Bytes per second of pinned copies by size, and of the fetch kernel by bytes at once."""
    import torch

    from hotset.plan.bus import copy_rate, kernel_copy_rate

    source = torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    source.fill_(1)
    base = source.data_ptr() + locker.shift(source.data_ptr())
    copies = {size: copy_rate(source, range(0, PINNED_BYTES - size + 1, size), size, device) for size in COPY_SIZES}
    zero = {}
    for n in SPANS_AT_ONCE:
        starts = np.random.default_rng(n).permutation(PINNED_BYTES // SPAN_BYTES)[:n] * SPAN_BYTES
        zero[n * SPAN_BYTES] = kernel_copy_rate(base, starts, SPAN_BYTES, device)
    return copies, zero


def _memory_rate(device: torch.device) -> float:
    from hotset.plan.bus import memory_rate

    return memory_rate(device)


def launch_seconds(device: torch.device) -> float:
    """What a small kernel costs where each is launched alone."""
    import torch

    from hotset.plan.bus import median_seconds

    x = torch.zeros(1, device=device)

    def launch_all() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)

    return median_seconds(launch_all) / LAUNCHES


def graph_launch_seconds(device: torch.device) -> float:
    """What a small kernel costs within a captured graph."""
    import torch

    from hotset.plan.bus import median_seconds

    x = torch.zeros(1, device=device)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        x.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_KERNELS):
            x.add_(1)
    return median_seconds(graph.replay) / GRAPH_KERNELS


def round_trip_seconds(device: torch.device) -> float:
    """What it costs the host to start a small kernel and read what it wrote."""
    import torch

    x = torch.zeros(1, device=device)
    seconds = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        x.add_(1).cpu()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def page_lockable(locker: Locker, n_bytes: int) -> int:
    """How much of `n_bytes` can be page-locked at once, in pieces as the bank locks them."""
    memory = own_pages(n_bytes)
    base = np.frombuffer(memory, np.uint8).ctypes.data
    locked: list[int] = []
    try:
        for start in range(base, base + n_bytes, LOCK_PIECE):
            if not locker.lock(start, min(LOCK_PIECE, base + n_bytes - start)):
                break
            locked.append(start)
        return min(n_bytes, len(locked) * LOCK_PIECE)
    finally:
        for start in locked:
            locker.unlock(start)
