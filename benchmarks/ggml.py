"""A thin way to ggml's CPU kernels, from the wheel `libggml-python`: the expert step as llama.cpp computes it, on one thread."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_int, c_int64, c_size_t, c_uint8, c_void_p
from pathlib import Path
from typing import Any

import libggml
import numpy as np
from numpy.typing import NDArray

F32, I32 = 0, 26
FEATURES = ("avx2", "avx_vnni", "avx512", "avx512_vnni")


class InitParams(Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class Plan(Structure):
    """struct ggml_cplan."""

    _fields_ = (
        ("work_size", c_size_t),
        ("work_data", POINTER(c_uint8)),
        ("n_threads", c_int),
        ("threadpool", c_void_p),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("use_ref", c_bool),
    )


def library() -> Any:
    """The three libraries; what the first two hold is seen through the last."""
    folder = Path(libggml.__file__).parent / "lib64"
    for name in ("libggml-base.so", "libggml-cpu.so"):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(str(folder / "libggml.so"), mode=ctypes.RTLD_GLOBAL)
    p, n = c_void_p, c_int64
    for name, result, arguments in (
        ("ggml_init", p, [InitParams]),
        ("ggml_new_tensor_1d", p, [p, c_int, n]),
        ("ggml_new_tensor_2d", p, [p, c_int, n, n]),
        ("ggml_new_tensor_3d", p, [p, c_int, n, n, n]),
        ("ggml_get_data", p, [p]),
        ("ggml_mul_mat_id", p, [p, p, p, p]),
        ("ggml_swiglu_split", p, [p, p, p]),
        ("ggml_mul", p, [p, p, p]),
        ("ggml_add", p, [p, p, p]),
        ("ggml_view_2d", p, [p, p, n, n, c_size_t, c_size_t]),
        ("ggml_new_graph", p, [p]),
        ("ggml_build_forward_expand", None, [p, p]),
        ("ggml_graph_plan", Plan, [p, c_int, p]),
        ("ggml_graph_compute", c_int, [p, POINTER(Plan)]),
        ("ggml_cpu_init", None, []),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.ggml_cpu_init()
    return lib


class ExpertStep:
    """down(silu(gate(x)) * up(x)) of the picked experts, weighted and summed."""

    def __init__(self, ggml_type: int, blocks: dict[str, NDArray[np.uint8]], d_model: int, d_expert: int, n_experts: int, k: int) -> None:  # fmt: skip
        self._lib = lib = library()
        room = sum(b.nbytes for b in blocks.values()) + (64 << 20)
        self._context = context = lib.ggml_init(InitParams(room, None, False))

        def weights(role: str, cols: int, rows: int) -> Any:
            tensor = lib.ggml_new_tensor_3d(context, ggml_type, cols, rows, n_experts)
            ctypes.memmove(lib.ggml_get_data(tensor), blocks[role].ctypes.data, blocks[role].nbytes)
            return tensor

        gate, up, down = (
            weights("gate", d_model, d_expert),
            weights("up", d_model, d_expert),
            weights("down", d_expert, d_model),
        )
        x = lib.ggml_new_tensor_3d(context, F32, d_model, 1, 1)
        picks = lib.ggml_new_tensor_2d(context, I32, k, 1)
        shares = lib.ggml_new_tensor_3d(context, F32, 1, k, 1)
        hidden = lib.ggml_swiglu_split(
            context, lib.ggml_mul_mat_id(context, gate, x, picks), lib.ggml_mul_mat_id(context, up, x, picks)
        )
        parts = lib.ggml_mul(context, lib.ggml_mul_mat_id(context, down, hidden, picks), shares)
        total = lib.ggml_view_2d(context, parts, d_model, 1, 4 * d_model * k, 0)
        for i in range(1, k):
            one = lib.ggml_view_2d(context, parts, d_model, 1, 4 * d_model * k, 4 * d_model * i)
            total = lib.ggml_add(context, total, one)
        self._graph = lib.ggml_new_graph(context)
        lib.ggml_build_forward_expand(self._graph, total)
        self.x = self._array(x, d_model, ctypes.c_float)
        self.picks = self._array(picks, k, ctypes.c_int32)
        self.weights = self._array(shares, k, ctypes.c_float)
        self.out = self._array(total, d_model, ctypes.c_float)
        self._plan = lib.ggml_graph_plan(self._graph, 1, None)
        self._work = (c_uint8 * max(1, self._plan.work_size))()
        self._plan.work_data = ctypes.cast(self._work, POINTER(c_uint8))

    def _array(self, tensor: Any, n: int, kind: Any) -> NDArray[Any]:
        return np.ctypeslib.as_array((kind * n).from_address(self._lib.ggml_get_data(tensor)))

    def run(self) -> None:
        """Compute `out` from `x`, `picks` and `weights`."""
        if self._lib.ggml_graph_compute(self._graph, byref(self._plan)):
            raise RuntimeError("ggml_graph_compute failed")


def features() -> str:
    """What this build of ggml uses of the CPU."""
    lib = library()
    return ", ".join(name for name in FEATURES if lib[f"ggml_cpu_has_{name}"]())
