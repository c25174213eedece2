"""Compile a kernel ahead of time, without a GPU: each kernels module lists its representative variants in `compile_cases()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class CompileCase:
    """One variant of a kernel. `types` of its run-time arguments as Triton spells them ("*fp32", "i32"), `constants` of the others.

    Pointers count as aligned to 16 bytes, as PyTorch's are, and integers named in `divisible` as multiples of 16, unless the kernel does
    not specialise on that.
    The constant `DP4A` (where there is one) is set by the target.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    fp_fusion: bool = False
    divisible: tuple[str, ...] = ()
    num_stages: int = 3


def compile_case(case: CompileCase, backend: str, arch: int | str) -> Any:
    """Compile for ("cuda", 90) or ("hip", "gfx1100"); returns Triton's compiled kernel with its `asm`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = dict(case.constants)
    if "DP4A" in constants:
        constants["DP4A"] = backend == "cuda"
    signature = {n: case.types.get(n, "constexpr") for n in case.kernel.arg_names}
    attributes = {
        (p.num,): [["tt.divisibility", 16]]
        for p in case.kernel.params
        if (case.types.get(p.name, "").startswith("*") or p.name in case.divisible)
        and not (p.do_not_specialize or p.do_not_specialize_on_alignment)
    }
    source = ASTSource(case.kernel, signature, constants, attributes)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages, "enable_fp_fusion": case.fp_fusion}
    return triton.compile(source, target=GPUTarget(backend, arch, 32), options=options)
