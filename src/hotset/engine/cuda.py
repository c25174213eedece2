"""CUDA: what is there and whether it can be used."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil

from hotset.errors import DeviceError


def cuda_problem() -> DeviceError | None:
    """Why no GPU can be used, or None; torch is imported only where a driver and a device are there."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return DeviceError("no NVIDIA driver was found; install one, or choose --device cpu")
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return DeviceError("the NVIDIA driver shows no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or choose --device cpu")
    if importlib.util.find_spec("triton") is None:
        return DeviceError("Triton is not installed; pip install triton, or choose --device cpu")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return DeviceError("Triton needs a C compiler on first use and none was found; install gcc, or choose --device cpu")
    import torch

    if not torch.cuda.is_available():
        return DeviceError(
            f"torch {torch.__version__} cannot use the GPU (a build for the CPU, or too old a driver); "
            "install torch for CUDA, or choose --device cpu"
        )
    return None
