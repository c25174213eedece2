"""What this processor can do, as far as the byte products care."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

LEVELS = ("avx512-vnni", "avx-vnni", "avx2", "neon-i8mm", "neon-dotprod", "portable")


@cache
def levels() -> tuple[str, ...]:
    """The ways to multiply bytes that run here, best first; `portable` always does."""
    features = llvm.get_host_cpu_features()
    have = {
        "avx512-vnni": features.get("avx512vnni") and features.get("avx512vl") and features.get("avx512bw"),
        "avx-vnni": features.get("avxvnni") and features.get("avx2"),
        "avx2": features.get("avx2"),
        "neon-i8mm": features.get("neon") and features.get("i8mm"),
        "neon-dotprod": features.get("neon") and features.get("dotprod"),
        "portable": True,
    }
    return tuple(level for level in LEVELS if have[level])


@cache
def has_half() -> bool:
    """Whether float16 converts in hardware (F16C on x86, always on 64-bit Arm)."""
    features = llvm.get_host_cpu_features()
    return bool(features.get("f16c") or features.get("fp-armv8") or features.get("fullfp16"))
