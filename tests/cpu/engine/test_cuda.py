"""What is asked of the driver, against one that only writes down what it was asked."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from hotset.engine import cuda as module  # noqa: E402
from hotset.engine.cuda import CudaLocker, host_call  # noqa: E402
from hotset.errors import DeviceError  # noqa: E402

CONTEXT = 0xABC0


class Driver:
    """Answers `code` to everything that can fail; the device sees host memory 4,096 bytes further on."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple] = []

    def cuCtxGetCurrent(self, out) -> int:  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = CONTEXT
        return 0

    def cuCtxSetCurrent(self, context) -> int:  # noqa: N802
        self.calls.append(("context", context.value))
        return 0

    def cuMemHostRegister_v2(self, start, n_bytes, flags) -> int:  # noqa: N802
        self.calls.append(("lock", start.value, n_bytes.value, flags))
        return self.code

    def cuMemHostUnregister(self, start) -> int:  # noqa: N802
        self.calls.append(("unlock", start.value))
        return 0

    def cuMemHostGetDevicePointer_v2(self, out, start, _flags) -> int:  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_uint64))[0] = start.value + 4096
        return self.code

    def cuLaunchHostFunc(self, stream, function, argument) -> int:  # noqa: N802
        self.calls.append(("call", stream.value, function.value, argument.value))
        return self.code


def test_memory_is_locked_mapped_and_in_the_context_of_the_thread_that_made_the_locker():
    driver = Driver()
    locker = CudaLocker(driver)
    big = (1 << 47) + 4096
    assert locker.lock(big, 5 << 30)
    assert locker.shift(big) == 4096
    locker.unlock(big)
    portable_and_mapped = 3
    there = ("context", CONTEXT)
    assert driver.calls == [there, ("lock", big, 5 << 30, portable_and_mapped), there, there, ("unlock", big)]


def test_a_refusal_to_lock_is_an_answer_and_memory_the_gpu_cannot_see_an_error():
    locker = CudaLocker(Driver(code=2))
    assert not locker.lock(4096, 4096)
    with pytest.raises(DeviceError, match="cannot read page-locked host memory here; run with --device cpu"):
        locker.shift(4096)


@pytest.fixture
def registered(monkeypatch) -> list:
    functions = []
    monkeypatch.setattr(module.atexit, "register", functions.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0x77))
    return functions


def test_the_host_is_called_on_the_current_stream_and_waited_for_before_python_goes(registered):
    driver = Driver()
    host_call(driver)(0x1234, 0x5678)
    assert driver.calls == [("call", 0x77, 0x1234, 0x5678)]
    assert registered == [torch.cuda.synchronize]


def test_a_driver_that_takes_no_calls_is_named(registered):
    with pytest.raises(DeviceError, match=r"takes no calls by the host \(error 801\); run with --device cpu"):
        host_call(Driver(code=801))(1, 2)
