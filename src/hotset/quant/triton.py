"""What the formats' Triton functions share; where Triton is absent (macOS, Windows) they are plain functions that nothing calls.

`load(base, row, k, padded_rows, COLS)`: the float32 values of elements (row, k), the bits of the format's NumPy reference.
    row [R, 1], k [1, K]; base points at the matrix's planes.
`dot(acc, base, row, unit, ok, activation, padded_rows, COLS, DP4A)`: acc [R, S] + the products of S units with int8 activations.
    unit [1, S], `ok` [1, S] says which of them exist; activation = (xq, xd, xh, xm): xq int8 [COLS], xd float32 [COLS / 32] its scales,
    xh int32 [COLS / 16] the sums of xq per 16 and xm float32 [COLS / 32] = xd * the sum of xq per 32. Sums of integers are exact, so
    DP4A changes no bit.
Both are compiled without fused multiply-add.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import triton as _triton
    import triton.language as tl
except ImportError:
    _triton = tl = None

__all__ = ["dot4", "jit", "nibble", "plane", "tl", "word_of"]


@overload
def jit(function: Callable[..., Any]) -> Any: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return `triton.jit(function)`; the function itself where there is no Triton. With options alone: a decorator."""
    if function is None:
        return partial(jit, **options)
    return _triton.jit(function, **options) if _triton else function


@jit
def plane(
    base: tl.tensor,
    row: tl.tensor,
    padded_rows: tl.tensor,
    N_BLOCKS: tl.constexpr,
    BEFORE: tl.constexpr,  # bytes of a block in the planes before this one
    COUNT: tl.constexpr,
    UNIT: tl.constexpr,
) -> tl.tensor:
    """Where each row's first unit of a plane lies, [R, 1]; units of a row, COUNT a block, are 16 apart."""
    start = base + tl.cast(padded_rows, tl.int64) * (N_BLOCKS * BEFORE)
    group = (row // 16).to(tl.int64) * (16 * N_BLOCKS * COUNT)  # a vocabulary's head passes 2^31 bytes
    return start.to(tl.pointer_type(UNIT)) + group + row % 16


@jit
def word_of(pair: tl.tensor, HIGH: tl.constexpr) -> tl.tensor:
    """Take one of the two 32-bit words of an int64."""
    return (pair >> (32 * HIGH)).to(tl.int32)


@jit
def dot4(a: tl.tensor, x: tl.tensor, total: tl.tensor, SIGNED: tl.constexpr, DP4A: tl.constexpr) -> tl.tensor:
    """Total + the products of four bytes of `a` (unsigned, or SIGNED) with four signed bytes of `x`."""
    if DP4A:
        if SIGNED:
            total = tl.inline_asm_elementwise(
                "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, x, total], dtype=tl.int32, is_pure=True, pack=1
            )
        else:
            total = tl.inline_asm_elementwise(
                "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, x, total], dtype=tl.int32, is_pure=True, pack=1
            )
    else:
        for i in tl.static_range(4):
            byte = ((a << (24 - 8 * i)) >> 24) if SIGNED else ((a >> (8 * i)) & 255)
            total += byte * ((x << (24 - 8 * i)) >> 24)
    return total


@jit
def nibble(word: tl.tensor, k: tl.tensor, HIGH: tl.tensor) -> tl.tensor:
    """Take the nibble of element k of a word that holds byte k % 4's low nibbles, or HIGH ones."""
    return (word >> (8 * (k % 4) + 4 * HIGH)) & 15
