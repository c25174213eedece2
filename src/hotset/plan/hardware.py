"""What was measured of this machine, once, and kept in the user's cache directory: figures that forecasts are made of."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hotset.engine.nvml import GpuInfo, Link, gpus
from hotset.host.cgroup import read
from hotset.host.folders import cache_root, replace_file
from hotset.host.threads import available_cores

FORMAT = 1
MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class GpuFigures:
    """One GPU: rates in bytes per second, times in seconds.

    `pinned_copy` is by bytes of a copy from page-locked memory; `zero_copy` by bytes that the fetch kernel brings at once; `memory` is read
    and written together. `launch_s` is a small kernel launched alone, `graph_launch_s` one within a graph, `round_trip_s` a kernel and
    reading its result. `page_locked_bytes` is how much could be page-locked in a trial that asked for `page_lock_tried`.
    """

    name: str
    capability: tuple[int, int]
    vram_bytes: int
    link: Link | None
    best_link: Link | None
    pinned_copy: dict[int, float]
    zero_copy: dict[int, float]
    memory: float
    launch_s: float
    graph_launch_s: float
    round_trip_s: float
    page_locked_bytes: int
    page_lock_tried: int

    def copy_rate(self, n_bytes: int) -> float:
        """Bytes per second of pinned copies of `n_bytes`: between two sizes the time is a straight line, beyond them the rate stays."""
        return rate_between(self.pinned_copy, n_bytes)


@dataclass(frozen=True)
class Machine:
    """Figures of one machine; `gpu` is None where none could be measured. `dram` is bytes per second by threads.

    `memlock_bytes` is the limit of `ulimit -l` (None: none). `missing` names what was not measured, and why.
    """

    cpu: str
    cores: int
    ram_bytes: int
    memlock_bytes: int | None
    dram: dict[int, float]
    gpu: GpuFigures | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def dram_rate(self, threads: int) -> float:
        """Bytes per second of plain reads with so many threads, from the nearest number measured."""
        return self.dram[min(self.dram, key=lambda n: (abs(n - threads), n))]

    def encoded(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Machine:
        """Read what `encoded` wrote; ValueError where it is something else."""
        value = json.loads(data)
        if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        try:
            gpu = value.pop("gpu")
            machine = cls(**value | {"dram": _by_number(value["dram"]), "gpu": gpu and _gpu_figures(gpu)})
            sound = bool(machine.dram) and all(rate > 0 for rate in machine.rates())
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or of another kind: {error}") from error
        if not sound:
            raise ValueError("a rate is not above 0")
        return machine

    def rates(self) -> Iterator[float]:
        """Every rate and time."""
        yield from self.dram.values()
        if self.gpu:
            yield from (*self.gpu.pinned_copy.values(), *self.gpu.zero_copy.values(), self.gpu.memory)
            yield from (self.gpu.launch_s, self.gpu.graph_launch_s, self.gpu.round_trip_s)


def rate_between(rates: Mapping[int, float], n_bytes: int) -> float:
    """The rate at a size between measured ones, whose times lie on straight lines."""
    sizes = sorted(rates)
    at = min(max(n_bytes, sizes[0]), sizes[-1])
    after = next(size for size in sizes if size >= at)
    before = next((size for size in reversed(sizes) if size < at), after)
    if after == before:
        return rates[after]
    share = (at - before) / (after - before)
    seconds = (1 - share) * before / rates[before] + share * after / rates[after]
    return at / seconds


def _gpu_figures(value: Mapping[str, Any]) -> GpuFigures:
    names = {f.name for f in fields(GpuFigures)}
    if value.keys() != names:
        raise TypeError(f"gpu has other fields than {', '.join(sorted(names))}")
    links = {name: value[name] and Link(**value[name]) for name in ("link", "best_link")}
    rates = {name: _by_number(value[name]) for name in ("pinned_copy", "zero_copy")}
    return GpuFigures(**{**value, **links, **rates, "capability": tuple(value["capability"])})


def _by_number(value: Mapping[str, float]) -> dict[int, float]:
    return {int(n): float(rate) for n, rate in value.items()}


def cpu_name(proc: Path = Path("/proc")) -> str:
    """The processor's name as the kernel knows it."""
    for line in read(proc / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def ram_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_key(found: Sequence[GpuInfo] | None = None) -> str:
    """Names this machine by its processor, cores and GPUs; another card or another slot makes it another machine."""
    cards = gpus() if found is None else found
    parts = [cpu_name(), str(available_cores()), *(f"{g.uuid} {g.address} {g.best_link}" for g in cards)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    return hashlib.sha256("\n".join([*parts, visible]).encode()).hexdigest()[:16]


def machine_path(key: str) -> Path:
    return cache_root() / "machines" / f"{key}.json"


def known_machine(key: str | None = None) -> Machine | None:
    """The figures kept for this machine, None where there are none or they cannot be read."""
    path = machine_path(key or machine_key())
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        return Machine.decoded(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def keep_machine(machine: Machine, key: str | None = None) -> Path:
    """Keep the figures for the next command. Raises OSError."""
    path = machine_path(key or machine_key())
    replace_file(path, machine.encoded())
    return path


def geometric(first: int, last: int, factor: int) -> list[int]:
    """first, first * factor, ... up to `last`, which is the end in any case."""
    steps = max(0, int(math.log(last / first, factor))) if last > first else 0
    return sorted({*(first * factor**i for i in range(steps + 1)), last})
