"""CUDA: what is there, whether it can be used, and how much of it."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import shutil
from collections.abc import Callable
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


# Read by the GPU (2), and by whichever context asks (1): cuMemHostRegister.
_LOCK_FLAGS = 3


class CudaLocker:
    """Page-locks host memory through the driver: a refusal by the runtime would come up again as an error of the next kernel.

    Made in a thread that uses CUDA; any thread may then lock.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver
        self._context = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(self._context))

    def lock(self, start: int, n_bytes: int) -> bool:
        """See bounce.Locker."""
        self._driver.cuCtxSetCurrent(self._context)
        code = self._driver.cuMemHostRegister_v2(ctypes.c_void_p(start), ctypes.c_size_t(n_bytes), _LOCK_FLAGS)
        return int(code) == 0

    def unlock(self, start: int) -> None:
        """See bounce.Locker."""
        self._driver.cuCtxSetCurrent(self._context)
        self._driver.cuMemHostUnregister(ctypes.c_void_p(start))

    def shift(self, start: int) -> int:
        """See bounce.Locker; DeviceError where the GPU sees no host memory at all."""
        self._driver.cuCtxSetCurrent(self._context)
        there = ctypes.c_uint64()
        if self._driver.cuMemHostGetDevicePointer_v2(ctypes.byref(there), ctypes.c_void_p(start), 0):
            raise DeviceError("the GPU cannot read page-locked host memory here; run with --device cpu")
        return there.value - start


def host_call(driver: ctypes.CDLL) -> Callable[[int, int], None]:
    """A function (C function, argument) that puts a call by the host onto torch's current stream; a step may be captured with it."""
    import torch

    def call(function: int, argument: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        code = driver.cuLaunchHostFunc(ctypes.c_void_p(stream), ctypes.c_void_p(function), ctypes.c_void_p(argument))
        if code:
            raise DeviceError(f"the driver takes no calls by the host (error {code}); run with --device cpu")

    # The driver may be in the middle of such a call when Python frees the code that it runs.
    atexit.register(torch.cuda.synchronize)
    return call


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
        pci = PciInfo()
        if nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle)):
            continue
        if not nvml.nvmlDeviceGetMemoryInfo(handle, memory) and not nvml.nvmlDeviceGetPciInfo_v3(
            handle, ctypes.byref(pci)
        ):
            free[pci_address(pci.domain, pci.bus, pci.device)] = memory[1]
    nvml.nvmlShutdown()
    return free


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

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
