"""The GPUs as the driver's management library knows them: names, memory, and the bus they hang on. No CUDA context is made."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from hotset.engine.cuda import PciInfo, pci_address

# Bytes per second of one lane, after line coding, by PCIe generation.
LANE_RATES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
TEXT_BYTES = 96


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


def gpus(library: Any = None) -> list[GpuInfo]:
    """All GPUs; none where the library is missing or refuses. `library` stands for libnvidia-ml in tests."""
    try:
        nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    try:
        found = (_gpu(nvml, i) for i in range(count.value))
        return [gpu for gpu in found if gpu]
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> GpuInfo | None:
    handle, pci = ctypes.c_void_p(), PciInfo()
    memory = (ctypes.c_ulonglong * 3)()  # total, free, used
    if (
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        or nvml.nvmlDeviceGetMemoryInfo(handle, memory)
        or nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci))
    ):
        return None
    return GpuInfo(
        name=_text(nvml.nvmlDeviceGetName, handle),
        uuid=_text(nvml.nvmlDeviceGetUUID, handle),
        address=pci_address(pci.domain, pci.bus, pci.device),
        vram_bytes=int(memory[0]),
        link=_link(nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        best_link=_link(nvml.nvmlDeviceGetMaxPcieLinkGeneration, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _text(ask: Any, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(TEXT_BYTES)
    return "" if ask(handle, text, TEXT_BYTES) else text.value.decode("utf-8", "replace")


def _link(generation_of: Any, width_of: Any, handle: ctypes.c_void_p) -> Link | None:
    generation, width = ctypes.c_uint(), ctypes.c_uint()
    if generation_of(handle, ctypes.byref(generation)) or width_of(handle, ctypes.byref(width)):
        return None
    return Link(generation.value, width.value)
