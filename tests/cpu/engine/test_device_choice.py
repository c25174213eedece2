"""What is missing for the GPU, each thing forced: with `auto` the CPU takes over with one line, with `cuda` the error names it and the way out."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import hotset  # noqa: E402
from hotset.engine import cuda as module  # noqa: E402
from hotset.engine.loading import choose_device  # noqa: E402
from hotset.errors import DeviceError  # noqa: E402


class Driver:
    """A driver that shows `n_devices`."""

    def __init__(self, n_devices: int = 1, code: int = 0) -> None:
        self.n_devices = n_devices
        self.code = code

    def cuInit(self, _flags) -> int:  # noqa: N802
        return self.code

    def cuDeviceGetCount(self, out) -> int:  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = self.n_devices
        return 0


def no_library() -> None:
    raise OSError("libcuda.so.1: cannot open shared object file")


@pytest.fixture
def machine(monkeypatch):
    """A machine that has everything; the function takes one thing away."""

    def have(*, driver=Driver, triton=True, compilers=("gcc",), usable=True) -> None:
        monkeypatch.setattr(module, "driver_library", driver)
        spec = module.importlib.util.find_spec
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda n: spec(n) if n != "triton" or triton else None)
        monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}" if name in compilers else None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)

    return have


MISSING = {
    "driver": ({"driver": no_library}, r"no NVIDIA driver was found; install one, or choose --device cpu"),
    "device": ({"driver": lambda: Driver(0)}, r"shows no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or choose --device cpu"),
    "device that works": ({"driver": lambda: Driver(1, 100)}, r"shows no GPU; check nvidia-smi"),
    "triton": ({"triton": False}, r"Triton is not installed; pip install triton, or choose --device cpu"),
    "compiler": ({"compilers": ()}, r"C compiler on first use and none was found; install gcc, or choose --device cpu"),
    "torch for it": ({"usable": False}, r"cannot use the GPU .*; install torch for CUDA, or choose --device cpu"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_named_where_the_gpu_was_asked_for(what, machine):
    options, message = MISSING[what]
    machine(**options)
    with pytest.raises(DeviceError, match=message):
        choose_device("cuda")


@pytest.mark.parametrize("what", MISSING)
def test_where_it_was_not_the_cpu_takes_over_with_one_line_that_names_it(what, machine):
    options, message = MISSING[what]
    machine(**options)
    device, notes = choose_device("auto")
    assert device == "cpu"
    (line,) = notes
    assert line.startswith("running on the CPU: ")
    assert "\n" not in line
    assert re.search(message, line)


@pytest.mark.parametrize("compiler", ["cc", "gcc", "clang"])
def test_a_machine_with_everything_takes_the_gpu(machine, compiler):
    machine(compilers=(compiler,))
    assert choose_device("auto") == ("cuda", [])
    assert choose_device("cuda") == ("cuda", [])


def test_the_cpu_asks_for_nothing(machine):
    machine(driver=no_library, triton=False, compilers=())
    assert choose_device("cpu") == ("cpu", [])


def test_a_model_loads_on_the_cpu_where_triton_is_missing(machine):
    machine(triton=False)
    engine = hotset.load("demo", n_ctx=64)
    assert engine.device == "cpu"
    assert any("Triton is not installed" in note for note in engine.notes)
    assert len(engine.generate("static int", max_tokens=3, temperature=0).tokens) == 3


def test_the_cpu_engine_runs_in_a_process_that_cannot_import_triton():
    code = """
import sys
sys.modules["triton"] = None
import hotset
engine = hotset.load("demo", device="cpu", n_ctx=64)
print(len(engine.generate("static int", max_tokens=3, temperature=0).tokens))
"""
    answer = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert answer.strip() == "3"
