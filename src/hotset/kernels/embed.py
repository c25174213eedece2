"""Rows of a quantised embedding matrix, as float32.

out[m, d] = W[tokens[m], d]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import cdiv
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.matvec import DeviceMatrix

BLOCK = 256


@jit
def embed_kernel(
    tokens: tl.tensor,  # int32 [m]
    base: tl.tensor,  # uint8, the matrix's planes
    out: tl.tensor,  # float32 [m, out_stride]
    padded_rows: tl.tensor,
    out_stride: tl.tensor,
    COLS: tl.constexpr,
    LOAD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    m = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    row = tl.load(tokens + m + tl.arange(0, 1))[:, None]  # [1, 1]
    value = LOAD(base, row, tl.minimum(k, COLS - 1), padded_rows, COLS)
    tl.store(out + m * out_stride + k, value, mask=k < COLS)


def embed(tokens: torch.Tensor, matrix: DeviceMatrix, out: torch.Tensor) -> None:
    """Write out float32 [m, cols] for tokens int32 [m], which the caller has checked to be rows of the matrix."""
    layout = matrix.layout
    assert out.shape == (len(tokens), layout.cols)
    assert out.stride(1) == 1
    embed_kernel[(len(tokens), cdiv(layout.cols, BLOCK))](
        tokens,
        matrix.data,
        out,
        layout.padded_rows,
        out.stride(0),
        COLS=layout.cols,
        LOAD=layout.fmt.load,
        BLOCK=BLOCK,
        num_warps=4,
        enable_fp_fusion=False,  # the formats' values are rounded after every step
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    from hotset.quant.formats import FORMATS

    types = {"tokens": "*i32", "base": "*u8", "out": "*fp32", "padded_rows": "i32", "out_stride": "i32"}
    return [
        CompileCase(f"embed {fmt.name}", embed_kernel, types, {"COLS": 768, "LOAD": fmt.load, "BLOCK": BLOCK})
        for fmt in FORMATS.values()
    ]
