"""CUDA: what is there, whether it can be used, and how much of it."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from typing import Any

from hotset.errors import DeviceError


def driver_library() -> ctypes.CDLL:
    """The driver, libcuda; OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def cuda_problem() -> DeviceError | None:
    """Why no GPU can be used, or None; torch is imported only where a driver and a device are there."""
    try:
        driver = driver_library()
    except OSError:
        return DeviceError("no NVIDIA driver was found; install one, or choose --device cpu")
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return DeviceError(
            "the NVIDIA driver shows no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or choose --device cpu"
        )
    if importlib.util.find_spec("triton") is None:
        return DeviceError("Triton is not installed; pip install triton, or choose --device cpu")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return DeviceError(
            "Triton needs a C compiler on first use and none was found; install gcc, or choose --device cpu"
        )
    import torch

    if not torch.cuda.is_available():
        return DeviceError(
            f"torch {torch.__version__} cannot use the GPU (a build for the CPU, or too old a driver); "
            "install torch for CUDA, or choose --device cpu"
        )
    return None


def free_before_context() -> dict[str, int]:
    """Free bytes of each GPU by PCI address, read without making a CUDA context; empty where NVML is missing."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return {}
    free: dict[str, int] = {}
    for i in range(count.value):
        handle = ctypes.c_void_p()
        memory = (ctypes.c_ulonglong * 3)()  # total, free, used
        pci = _PciInfo()
        if nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle)):
            continue
        if not nvml.nvmlDeviceGetMemoryInfo(handle, memory) and not nvml.nvmlDeviceGetPciInfo_v3(
            handle, ctypes.byref(pci)
        ):
            free[pci_address(pci.domain, pci.bus, pci.device)] = memory[1]
    nvml.nvmlShutdown()
    return free


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("old_id", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("id", ctypes.c_char * 32),
    )


def pci_address(domain: int, bus: int, device: int) -> str:
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def address_of(properties: Any) -> str:
    """The PCI address of torch's device properties."""
    return pci_address(properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
