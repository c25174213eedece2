"""Rows of a chunk as float16 operands of tensor cores, with a power of two per row that keeps them in range.

x[m, k] = half[m, position(k)] scale[m];   the largest |half| of a row lies in [2^14, 2^15)

silu(300) * 300 = 90,000 neither overflows nor loses bits. The columns stand in the order of quant/tiles.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton

from hotset.kernels.aot import CompileCase
from hotset.kernels.tuning import ChunkTuning, chunk_tuning_for
from hotset.quant.tiles import ORDER_WARPGROUP, in_order
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.quant.layout import QuantFormat

BLOCK = 32
# Tiles of a row choose among powers of 2^8, so that those of most rows agree and `level` has nothing to do.
COARSE = 8


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """Rows [m, cols] of a chunk: float32, and float16 with a scale per row. Rows off the block of 32 columns have no `half`."""

    f32: torch.Tensor
    half: torch.Tensor | None = None  # float16 [m, cols]
    scale: torch.Tensor | None = None  # float32 [m]

    @classmethod
    def empty(cls, m: int, cols: int, device: torch.device | str) -> ChunkRows:
        import torch

        f32 = torch.empty(m, cols, device=device)
        if cols % BLOCK:
            return cls(f32)
        return cls(f32, torch.empty(m, cols, dtype=torch.float16, device=device), torch.empty(m, device=device))

    @property
    def shape(self) -> torch.Size:
        return self.f32.shape

    def rows(self, m: int) -> ChunkRows:
        """Return a view of the first `m` rows."""
        return ChunkRows(self.f32[:m], *(None if t is None else t[:m] for t in (self.half, self.scale)))


def in_halves(fmt: QuantFormat, cols: int) -> bool:
    """Say whether a matrix of this format is multiplied in float16; else all is float32."""
    return fmt.tile is not None and cols % BLOCK == 0


@jit
def power_of_two(largest: tl.tensor, COARSE: tl.constexpr) -> tl.tensor:
    """Return the power of two s that puts largest / s below 2^15 and within 2^COARSE of it, and 1 / s."""
    exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 16)  # below 2^-111 all counts as small
    exponent = (exponent + (COARSE - 1)) // COARSE * COARSE
    scale = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
    inverse = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, inverse


# One program per row.
@jit
def halve_kernel(
    x: tl.tensor,  # float32 [m, COLS]
    weight: tl.tensor,  # float32 [COLS], or None: no norm
    f32: tl.tensor,  # float32 [m, COLS], the normed rows; not written without a norm
    half: tl.tensor,  # float16 [m, COLS], or None as the next
    row_scale: tl.tensor,  # float32 [m]
    eps: tl.tensor,
    COLS: tl.constexpr,
    B: tl.constexpr,  # blocks of 32, a power of two
    ORDER: tl.constexpr,
) -> None:
    m = tl.program_id(0).to(tl.int64)
    # Neighbours are loaded by neighbours and change places in registers: loads in the operand's order take a sector for each element.
    at = tl.arange(0, B)[:, None] * 32 + tl.arange(0, 32)[None, :]
    value = tl.load(x + m * COLS + at, mask=at < COLS, other=0)
    if weight is not None:
        mean = tl.div_rn(tl.sum(tl.sum(value * value, 1), 0), COLS * 1.0)
        factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
        value = value * factor * tl.load(weight + at, mask=at < COLS, other=0)
        tl.store(f32 + m * COLS + at, value, mask=at < COLS)
    if half is not None:
        scale, inverse = power_of_two(tl.max(tl.max(tl.abs(value), 1), 0), 1)
        small = in_order((value * inverse).to(tl.float16), B, 32, ORDER)
        tl.store(half + m * COLS + at, small, mask=at < COLS)
        tl.store(row_scale + m, scale)


# One program takes every num_programs-th row of a wave. `wave` counts up: specialising would compile variants.
@triton.jit(do_not_specialize=["wave"])  # type: ignore[untyped-decorator]
def level_kernel(
    half: tl.tensor,  # float16 [rows, COLS]
    part_scale: tl.tensor,  # float32 [rows, N_PARTS]
    row_scale: tl.tensor,  # float32 [rows]
    bounds: tl.tensor,  # int32 [waves + 1]
    wave: tl.tensor,
    COLS: tl.constexpr,
    B: tl.constexpr,
    N_PARTS: tl.constexpr,
    P: tl.constexpr,
) -> None:
    row = tl.load(bounds + wave) + tl.program_id(0)
    end = tl.load(bounds + wave + 1)
    k = tl.arange(0, B)
    part = tl.arange(0, P)
    while row < end:
        at = row.to(tl.int64)
        scales = tl.load(part_scale + at * N_PARTS + part, mask=part < N_PARTS, other=0)
        top = tl.max(scales, 0)
        if tl.min(tl.where(part < N_PARTS, scales, top), 0) != top:
            own = tl.load(part_scale + at * N_PARTS + k // (COLS // N_PARTS), mask=k < COLS, other=0)
            value = tl.load(half + at * COLS + k, mask=k < COLS, other=0).to(tl.float32)
            tl.store(half + at * COLS + k, (value * tl.div_rn(own, top)).to(tl.float16), mask=k < COLS)
        tl.store(row_scale + at, top)
        row += tl.num_programs(0)


def halve(x: ChunkRows, tuning: ChunkTuning | None = None) -> None:
    """Fill `half` and `scale` from `x.f32`; nothing where it has none."""
    if x.half is not None:
        _halve(x.f32, None, x, 0.0, tuning)


def rms_norm_rows(
    x: torch.Tensor, weight: torch.Tensor, out: ChunkRows, eps: float, tuning: ChunkTuning | None = None
) -> None:
    """Normalise x float32 [m, D] into `out`, in every form that it has; kernels/norm.py has the formula."""
    assert weight.shape == (x.shape[1],)
    _halve(x, weight, out, eps, tuning)


def _halve(
    x: torch.Tensor, weight: torch.Tensor | None, out: ChunkRows, eps: float, tuning: ChunkTuning | None
) -> None:
    m, cols = x.shape
    assert x.is_contiguous()
    assert out.shape == x.shape
    tuning = tuning or chunk_tuning_for(x.device)
    blocks = _blocks(cols)
    halve_kernel[(m,)](
        x,
        weight,
        out.f32,
        out.half,
        out.scale,
        eps,
        COLS=cols,
        B=blocks,
        ORDER=tuning.order,
        num_warps=4 if blocks <= 128 else 8,
        enable_fp_fusion=False,
    )


def level(
    half: torch.Tensor,
    part_scale: torch.Tensor,
    row_scale: torch.Tensor,
    bounds: torch.Tensor,
    wave: int,
    n_programs: int,
) -> None:
    """Bring the parts of each row in bounds[wave] .. bounds[wave + 1] to one scale, the row's largest, in place."""
    cols, n_parts = half.shape[1], part_scale.shape[1]
    assert cols % n_parts == 0
    level_kernel[(n_programs,)](
        half,
        part_scale,
        row_scale,
        bounds,
        wave,
        COLS=cols,
        B=BLOCK * _blocks(cols),
        N_PARTS=n_parts,
        P=1 << (n_parts - 1).bit_length(),
        num_warps=4,
        enable_fp_fusion=False,
    )


def _blocks(cols: int) -> int:
    return 1 << (-(-cols // BLOCK) - 1).bit_length()


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"x": "*fp32", "weight": "*fp32", "f32": "*fp32", "half": "*fp16", "row_scale": "*fp32", "eps": "fp32"}
    constants = {"COLS": 2880, "B": 128, "ORDER": ORDER_WARPGROUP}
    plain = {name: t for name, t in types.items() if name != "weight"}
    parts = {"half": "*fp16", "part_scale": "*fp32", "row_scale": "*fp32", "bounds": "*i32", "wave": "i32"}
    return [
        CompileCase("rms_norm_rows", halve_kernel, types, constants),
        CompileCase("halve", halve_kernel, plain, constants | {"weight": None}),
        CompileCase("level", level_kernel, parts, {"COLS": 768, "B": 1024, "N_PARTS": 6, "P": 8}),
    ]
