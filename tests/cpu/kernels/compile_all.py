"""Compile the kernels' representative variants for one target, without a GPU: compile_all.py BACKEND ARCH. Prints one line for each."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import hotset.kernels
from hotset.kernels.aot import CompileCase, compile_case

# Every variant is compiled for this one; the other targets get one variant of each kernel.
WHOLE = {("cuda", "90")}


def all_cases() -> list[CompileCase]:
    names = sorted(m.name for m in pkgutil.iter_modules(hotset.kernels.__path__))
    modules = [importlib.import_module(f"hotset.kernels.{name}") for name in names]
    return [case for m in modules for case in getattr(m, "compile_cases", list)()]


def main(backend: str, arch: str) -> None:
    cases = all_cases()
    if (backend, arch) not in WHOLE:
        cases = list({case.kernel: case for case in reversed(cases)}.values())
    for case in cases:
        compiled = compile_case(case, backend, int(arch) if backend == "cuda" else arch)
        print(case.name, len(compiled.asm["cubin" if backend == "cuda" else "hsaco"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
