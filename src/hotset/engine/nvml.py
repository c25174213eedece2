"""The GPUs as the driver's management library knows them: names, memory, the bus they hang on, and how they run. No CUDA context is made."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotset.engine.cuda import PciInfo, address_of, pci_address

if TYPE_CHECKING:
    import torch

# Bytes per second of one lane, after line coding, by PCIe generation.
LANE_RATES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
TEXT_BYTES = 96
# NVML_CLOCK_SM.
SM_CLOCK = 1


@dataclass(frozen=True)
class Link:
    """A PCIe link: its generation and lanes."""

    generation: int
    width: int

    @property
    def rate(self) -> float:
        """Bytes per second on the wire, one way; copies reach 80 to 90 % of it."""
        return LANE_RATES.get(self.generation, 0.0) * self.width

    def __str__(self) -> str:
        return f"PCIe {self.generation} x{self.width}"


@dataclass(frozen=True)
class GpuInfo:
    """One GPU; `link` is in use now (an idle GPU may slow it down), `best_link` what card and slot allow. None where the driver does not say."""

    name: str
    uuid: str
    address: str
    vram_bytes: int
    link: Link | None
    best_link: Link | None


@dataclass(frozen=True)
class GpuState:
    """What a GPU does at a moment: its link, clock and power, and the most that they could be. None where the driver does not say."""

    link: Link | None
    best_link: Link | None
    mhz: int | None
    best_mhz: int | None
    watts: float | None
    most_watts: float | None

    @property
    def bus_rate(self) -> float | None:
        """Bytes per second on the wire once the GPU is awake: while it idles it keeps its lanes and lowers the generation."""
        if self.link is None or self.best_link is None:
            return None
        return Link(self.best_link.generation, self.link.width).rate or None

    def __str__(self) -> str:
        """As in "PCIe 4 x16, 1,980 of 1,980 MHz, 310 of 700 W"."""
        pairs = ((self.mhz, self.best_mhz, "MHz"), (self.watts, self.most_watts, "W"))
        parts = [link_text(self.link, self.best_link)]
        parts += [
            f"{now:,.0f} of {most:,.0f} {unit}" for now, most, unit in pairs if now is not None and most is not None
        ]
        return ", ".join(parts)

    def facts(self) -> dict[str, str | float | None]:
        """Plain values."""
        links = {"gpu_link": self.link, "gpu_best_link": self.best_link}
        return {
            **{name: None if link is None else str(link) for name, link in links.items()},
            "gpu_mhz": self.mhz,
            "gpu_best_mhz": self.best_mhz,
            "gpu_watts": self.watts,
            "gpu_most_watts": self.most_watts,
        }


UNKNOWN = GpuState(None, None, None, None, None, None)


def link_text(link: Link | None, best: Link | None) -> str:
    """The link in use, and the one that card and slot allow, where that is another."""
    if link is None:
        return "a link that is not known"
    if best is None or link == best:
        return f"{link}"
    return f"{link}, though card and slot allow {best}: check the slot, its lanes, and the firmware's settings"


def gpus(library: Any = None) -> list[GpuInfo]:
    """All GPUs; none where the library is missing or refuses. `library` stands for libnvidia-ml in tests."""
    with _devices(library) as (nvml, handles):
        found = [_gpu(nvml, handle) for handle in handles]
    return [gpu for gpu in found if gpu]


def state(address: str, library: Any = None) -> GpuState | None:
    """What the GPU at a PCI address does now, None where the driver does not say."""
    with _devices(library) as (nvml, handles):
        for handle in handles:
            if _address(nvml, handle) == address:
                return _state(nvml, handle)
    return None


def state_of(device: torch.device) -> GpuState | None:
    """The same of a device of torch."""
    import torch  # nothing else here needs it

    return state(address_of(torch.cuda.get_device_properties(device)))


@contextmanager
def _devices(library: Any) -> Iterator[tuple[Any, list[ctypes.c_void_p]]]:
    """The opened library and the GPUs' handles, none of them where it is missing or refuses."""
    try:
        nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield None, []
        return
    if nvml.nvmlInit_v2():
        yield nvml, []
        return
    try:
        count = ctypes.c_uint()
        n = 0 if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) else count.value
        handles = [ctypes.c_void_p() for _ in range(n)]
        yield nvml, [h for i, h in enumerate(handles) if not nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(h))]
    finally:
        nvml.nvmlShutdown()


def _address(nvml: Any, handle: ctypes.c_void_p) -> str | None:
    pci = PciInfo()
    if nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)):
        return None
    return pci_address(pci.domain, pci.bus, pci.device)


def _gpu(nvml: Any, handle: ctypes.c_void_p) -> GpuInfo | None:
    memory = (ctypes.c_ulonglong * 3)()  # total, free, used
    address = _address(nvml, handle)
    if address is None or nvml.nvmlDeviceGetMemoryInfo(handle, memory):
        return None
    return GpuInfo(
        name=_text(nvml.nvmlDeviceGetName, handle),
        uuid=_text(nvml.nvmlDeviceGetUUID, handle),
        address=address,
        vram_bytes=int(memory[0]),
        link=_link_now(nvml, handle),
        best_link=_best_link(nvml, handle),
    )


def _state(nvml: Any, handle: ctypes.c_void_p) -> GpuState:
    watts, most = (_number(ask, handle) for ask in (nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetEnforcedPowerLimit))
    return GpuState(
        link=_link_now(nvml, handle),
        best_link=_best_link(nvml, handle),
        mhz=_number(nvml.nvmlDeviceGetClockInfo, handle, SM_CLOCK),
        best_mhz=_number(nvml.nvmlDeviceGetMaxClockInfo, handle, SM_CLOCK),
        watts=None if watts is None else watts / 1e3,
        most_watts=None if most is None else most / 1e3,
    )


def _number(ask: Any, handle: ctypes.c_void_p, *which: int) -> int | None:
    value = ctypes.c_uint()
    return None if ask(handle, *which, ctypes.byref(value)) else value.value


def _text(ask: Any, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(TEXT_BYTES)
    return "" if ask(handle, text, TEXT_BYTES) else text.value.decode("utf-8", "replace")


def _link_now(nvml: Any, handle: ctypes.c_void_p) -> Link | None:
    return _link(nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)


def _best_link(nvml: Any, handle: ctypes.c_void_p) -> Link | None:
    return _link(nvml.nvmlDeviceGetMaxPcieLinkGeneration, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)


def _link(generation_of: Any, width_of: Any, handle: ctypes.c_void_p) -> Link | None:
    generation, width = _number(generation_of, handle), _number(width_of, handle)
    return None if generation is None or width is None else Link(generation, width)
