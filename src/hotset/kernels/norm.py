"""Root-mean-square norm of a few rows, and their quantised form in the same launch.

y[m, i] = x[m, i] / sqrt(mean_i x[m, i]^2 + eps) * weight[i] (+ bias[i]); layer norm takes the mean off x first
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.kernels.activation import BLOCK, QUANTISED_TYPES, Activation, quantised_reference, store_quantised
from hotset.kernels.aot import CompileCase
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch


@jit
def rms_norm_kernel(
    x: tl.tensor,  # float32 [m, x_stride]
    weight: tl.tensor,  # float32 [D]
    bias: tl.tensor,  # float32 [D], or None
    y: tl.tensor,  # float32 [m, y_stride]
    q: tl.tensor,  # int8 [m, D], or None as those below
    d: tl.tensor,  # float32 [m, D / 32]
    h: tl.tensor,  # int32 [m, D / 16]
    s: tl.tensor,  # float32 [m, D / 32]
    eps: tl.tensor,
    x_stride: tl.tensor,
    y_stride: tl.tensor,
    D: tl.constexpr,
    B: tl.constexpr,  # blocks of 32, a power of two
    CENTRED: tl.constexpr,
) -> None:
    m = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, B)
    at = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    value = tl.load(x + m * x_stride + at, mask=at < D, other=0)
    if CENTRED:
        value -= tl.div_rn(tl.sum(tl.sum(value, 1), 0), D * 1.0)
        value = tl.where(at < D, value, 0.0)
    mean = tl.div_rn(tl.sum(tl.sum(value * value, 1), 0), D * 1.0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    normed = value * scale * tl.load(weight + at, mask=at < D, other=0)
    if bias is not None:
        normed += tl.load(bias + at, mask=at < D, other=0)
    tl.store(y + m * y_stride + at, normed, mask=at < D)
    if q is not None:
        rows = (q + m * D, d + m * (D // 32), h + m * (D // 16), s + m * (D // 32))
        store_quantised(normed, block, block < D // 32, rows[0], rows[1], rows[2], rows[3])


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: Activation,
    eps: float,
    *,
    bias: torch.Tensor | None = None,
    centred: bool = False,
) -> None:
    """Normalise x float32 [m, D] into `out`, in every form that it has; rows may lie apart, and `out` may be x itself."""
    m, width = x.shape
    assert x.stride(1) == out.f32.stride(1) == 1
    assert out.shape == x.shape
    assert weight.shape == (width,)
    n_blocks = _blocks(width)
    rms_norm_kernel[(m,)](
        x,
        weight,
        bias,
        *out.tensors,
        eps,
        x.stride(0),
        out.f32.stride(0),
        D=width,
        B=n_blocks,
        CENTRED=centred,
        num_warps=_warps(n_blocks),
        enable_fp_fusion=False,
    )


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, bias: torch.Tensor | None = None, centred: bool = False
) -> Activation:
    """Do the same in plain PyTorch; the sum of squares is added up in another order."""
    if centred:
        x = x - x.mean(-1, keepdim=True)
    y = x * (1 / (x.square().mean(-1, keepdim=True) + eps).sqrt()) * weight
    if bias is not None:
        y = y + bias
    return Activation(y) if x.shape[1] % BLOCK else quantised_reference(y)


def _blocks(width: int) -> int:
    return 1 << (-(-width // BLOCK) - 1).bit_length()


def _warps(n_blocks: int) -> int:
    return 4 if n_blocks <= 128 else 8


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"x": "*fp32", "weight": "*fp32", "y": "*fp32", "eps": "fp32", "x_stride": "i32", "y_stride": "i32"}
    absent = dict.fromkeys(QUANTISED_TYPES)
    plain = {"D": 2880, "B": 128, "CENTRED": False, "bias": None}
    return [
        CompileCase("rms_norm", rms_norm_kernel, types | QUANTISED_TYPES, plain),
        CompileCase(
            "rms_norm float", rms_norm_kernel, types, {"D": 2048, "B": 64, "CENTRED": False, "bias": None} | absent
        ),
        CompileCase(
            "layer norm", rms_norm_kernel, types | {"bias": "*fp32"}, {"D": 2048, "B": 64, "CENTRED": True} | absent
        ),
    ]
