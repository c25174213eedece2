"""How many threads to compute with: the physical cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from hotset.errors import InputError
from hotset.host.cgroup import memberships, read, with_ancestors


def available_cores(sys: Path = Path("/sys"), proc: Path = Path("/proc"), cpus: set[int] | None = None) -> int:
    """Physical performance cores within this process's affinity and cgroup quota, at least 1.

    Two hyper-threads of a core share its multipliers and gain nothing here; efficiency cores would gate every step.
    `sys`, `proc` and `cpus` stand for /sys, /proc and the affinity in tests.
    """
    allowed = cpus if cpus is not None else _affinity()
    cores: dict[tuple[int, ...], int] = {}
    for cpu in sorted(allowed):
        cores.setdefault(_siblings(sys, cpu), cpu)
    fast = _performance_cpus(sys)
    performance = [cpu for cpu in cores.values() if not fast or cpu in fast]
    n = len(performance) or len(cores) or 1
    quota = _quota(sys, proc)
    return max(1, min(n, math.floor(quota + 0.01))) if quota else n


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_list(text: str) -> set[int]:
    """The kernel's "0-3,8" -> {0, 1, 2, 3, 8}."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _siblings(sys: Path, cpu: int) -> tuple[int, ...]:
    text = read(sys / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return tuple(sorted(cpu_list(text))) or (cpu,)


def _performance_cpus(sys: Path) -> set[int]:
    """CPUs of the fast kind on hybrid x86 machines; empty where there is one kind."""
    return cpu_list(read(sys / "devices/cpu_core/cpus")) if (sys / "devices/cpu_atom").is_dir() else set()


def _quota(sys: Path, proc: Path) -> float:
    """CPUs that the cgroup (v2 or v1) of this process may use; 0 where there is no limit."""
    limits = []
    for controllers, path in memberships(proc):
        if not controllers:
            limits += _v2_limits(sys / "fs/cgroup", path)
        elif "cpu" in controllers:
            root = sys / "fs/cgroup/cpu"
            folder = root / path.lstrip("/")
            folder = folder if folder.is_dir() else root
            limits.append(_ratio(read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")))
    return min((x for x in limits if x > 0), default=0.0)


def _v2_limits(root: Path, path: str) -> list[float]:
    """Every ancestor's cpu.max counts."""
    texts = [read(f / "cpu.max") for f in with_ancestors(root, path)]
    return [_ratio(*text.split(maxsplit=1)) for text in texts if " " in text]


def _ratio(quota: str, period: str) -> float:
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return 0.0


def checked_threads(threads: int | None) -> int:
    """The number of threads asked for, or the default; InputError outside 1 .. the threads that Numba can start here."""
    from numba import config  # heavy, and only this number is wanted of it

    # The CPUs of the affinity, or $NUMBA_NUM_THREADS; Numba refuses more in the middle of a run.
    limit = int(config.NUMBA_NUM_THREADS)
    if threads is None:
        return min(available_cores(), limit)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= limit:
        raise InputError(f"threads must be 1 to {limit}, the CPUs that this process may use, not {threads!r}")
    return threads
