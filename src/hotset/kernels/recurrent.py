"""What carries a state from position to position, for a few rows: causal convolutions and the gated delta rule.

A row of position 0 starts from zeros; rows are taken in order, and those of mask 0 change nothing. host/recurrent.py is the same on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton import cdiv, next_power_of_2

from hotset.kernels.aot import CompileCase
from hotset.kernels.rows import ROW_TABLES
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.rows import Rows

BLOCK = 128
VALUES = 32


# y[r, c] = sum_j kernel[c, j] x[r - WIDTH + 1 + j, c]; GATED: x is B * x and y is multiplied by C, of rows that hold B, C and x; else silu(y).
@jit(do_not_specialize=["m"], do_not_specialize_on_alignment=ROW_TABLES)
def convolve_kernel(
    x: tl.tensor,  # float32 [m, x_stride]
    kernel: tl.tensor,  # float32 [C, WIDTH]
    state: tl.tensor,  # float32 [n_seqs, C, WIDTH - 1], oldest first
    positions: tl.tensor,
    seqs: tl.tensor,
    row_mask: tl.tensor,
    out: tl.tensor,  # float32 [m, C]
    m: tl.tensor,
    x_stride: tl.tensor,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = c < C
    r = 0
    while r < m:
        if tl.load(row_mask + r) != 0:
            is_new = tl.load(positions + r) == 0
            past = state + (tl.load(seqs + r).to(tl.int64) * C + c) * (WIDTH - 1)
            row = x + r * x_stride + c
            if GATED:
                value = tl.load(row, mask=ok, other=0.0) * tl.load(row + 2 * C, mask=ok, other=0.0)
            else:
                value = tl.load(row, mask=ok, other=0.0)
            total = tl.zeros([BLOCK], tl.float32)
            for j in tl.static_range(WIDTH - 1):
                older = tl.where(is_new, 0.0, tl.load(past + j, mask=ok, other=0.0))
                total += tl.load(kernel + c * WIDTH + j, mask=ok, other=0.0) * older
                if j > 0:
                    tl.store(past + j - 1, older, mask=ok)
            total += tl.load(kernel + c * WIDTH + WIDTH - 1, mask=ok, other=0.0) * value
            tl.store(past + WIDTH - 2, value, mask=ok)
            if GATED:
                total *= tl.load(row + C, mask=ok, other=0.0)
            else:
                total = tl.div_rn(total, 1.0 + tl.exp(-total))
            tl.store(out + r * C + c, total, mask=ok)
        r += 1


def convolve(
    x: torch.Tensor, kernel: torch.Tensor, state: torch.Tensor, rows: Rows, out: torch.Tensor, *, gated: bool
) -> None:
    """Convolve x float32 [m, >= C], or with `gated` [m, >= 3 C], into out [m, C]; `state` moves on."""
    channels, width = kernel.shape
    assert state.shape[1:] == (channels, width - 1)
    assert out.is_contiguous()
    convolve_kernel[(cdiv(channels, BLOCK),)](
        x,
        kernel,
        state,
        rows.positions,
        rows.seqs,
        rows.row_mask,
        out,
        len(out),
        x.stride(0),
        C=channels,
        WIDTH=width,
        GATED=gated,
        BLOCK=BLOCK,
        num_warps=1,
        enable_fp_fusion=False,
    )


# S = decay S + k (beta (v - decay S^T k))^T, y = S^T q / sqrt(d_key): one program per value head and VALUES columns of its state.
@jit(do_not_specialize=["m"], do_not_specialize_on_alignment=ROW_TABLES)
def delta_kernel(
    mixed: tl.tensor,  # float32 [m, 2 * N_KEY * DK + N * DV], after the convolution
    beta: tl.tensor,  # float32 [m, beta_stride], before the sigmoid
    alpha: tl.tensor,  # float32 [m, alpha_stride]
    shift: tl.tensor,  # float32 [N]
    decay: tl.tensor,  # float32 [N], negative
    state: tl.tensor,  # float32 [n_seqs, N, DK, DV]
    positions: tl.tensor,
    seqs: tl.tensor,
    row_mask: tl.tensor,
    out: tl.tensor,  # float32 [m, N * DV]
    m: tl.tensor,
    beta_stride: tl.tensor,
    alpha_stride: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    N: tl.constexpr,
    N_KEY: tl.constexpr,
    DK: tl.constexpr,
    DK_PAD: tl.constexpr,
    DV: tl.constexpr,
    BV: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> None:
    head = tl.program_id(0)
    key_head = head // (N // N_KEY) if INTERLEAVED else head % N_KEY
    i = tl.arange(0, DK_PAD)
    j = tl.program_id(1) * BV + tl.arange(0, BV)
    ok = (i < DK)[:, None] & (j < DV)[None, :]
    r = 0
    while r < m:
        if tl.load(row_mask + r) != 0:
            row = mixed + r * (2 * N_KEY * DK + N * DV)
            q = tl.load(row + key_head * DK + i, mask=i < DK, other=0.0)
            k = tl.load(row + (N_KEY + key_head) * DK + i, mask=i < DK, other=0.0)
            v = tl.load(row + 2 * N_KEY * DK + head * DV + j, mask=j < DV, other=0.0)
            q = tl.div_rn(q, tl.maximum(tl.sqrt_rn(tl.sum(q * q, 0)), eps)) * scale
            k = tl.div_rn(k, tl.maximum(tl.sqrt_rn(tl.sum(k * k, 0)), eps))
            step = tl.load(alpha + r * alpha_stride + head) + tl.load(shift + head)
            # softplus, which is the argument itself where it is large
            step = tl.where(step > 20.0, step, tl.log(1.0 + tl.exp(tl.minimum(step, 20.0))))
            fade = tl.exp(step * tl.load(decay + head))
            write = tl.div_rn(1.0, 1.0 + tl.exp(-tl.load(beta + r * beta_stride + head)))
            cell = state + ((tl.load(seqs + r).to(tl.int64) * N + head) * DK + i[:, None]) * DV + j[None, :]
            s = tl.load(cell, mask=ok, other=0.0)
            s = tl.where(tl.load(positions + r) == 0, 0.0, s * fade)
            error = (v - tl.sum(s * k[:, None], 0)) * write
            s += k[:, None] * error[None, :]
            tl.store(cell, s, mask=ok)
            tl.store(out + r * N * DV + head * DV + j, tl.sum(s * q[:, None], 0), mask=j < DV)
        r += 1


def delta_rule(
    mixed: torch.Tensor,
    beta: torch.Tensor,
    alpha: torch.Tensor,
    shift: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    rows: Rows,
    out: torch.Tensor,
    *,
    n_key_heads: int,
    interleaved: bool,
    eps: float,
) -> None:
    """Write out float32 [m, n * d_value] for mixed [m, 2 n_key_heads * d_key + n * d_value]; `state` [n_seqs, n, d_key, d_value] moves on."""
    _, n, d_key, d_value = state.shape
    assert mixed.is_contiguous()
    assert out.is_contiguous()
    assert state.is_contiguous()
    delta_kernel[(n, cdiv(d_value, VALUES))](
        mixed,
        beta,
        alpha,
        shift,
        decay,
        state,
        rows.positions,
        rows.seqs,
        rows.row_mask,
        out,
        len(out),
        beta.stride(0),
        alpha.stride(0),
        eps,
        d_key**-0.5,
        N=n,
        N_KEY=n_key_heads,
        DK=d_key,
        DK_PAD=next_power_of_2(d_key),
        DV=d_value,
        BV=VALUES,
        INTERLEAVED=interleaved,
        num_warps=4,
        enable_fp_fusion=False,
    )


# y[r, h, i] = x[r, h, i] / rms(x[r, h]) * weight[i] * silu(z[r, h, i]), one program per row and head
@jit
def gated_norm_kernel(
    x: tl.tensor,  # float32 [m, N * D]
    z: tl.tensor,  # float32 [m, z_stride]
    weight: tl.tensor,  # float32 [D]
    z_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    head = tl.program_id(1)
    i = tl.arange(0, D_PAD)
    at = x + (row * N + head) * D + i
    value = tl.load(at, mask=i < D, other=0.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(value * value, 0) / D + eps))
    gate = tl.load(z + row * z_stride + head * D + i, mask=i < D, other=0.0)
    value *= factor * tl.load(weight + i, mask=i < D, other=0.0)
    tl.store(at, value * tl.div_rn(gate, 1.0 + tl.exp(-gate)), mask=i < D)


def gated_norm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Norm each head of x float32 [m, n * d], in place, and multiply by silu(z [m, >= n * d]); weight [d]."""
    d = len(weight)
    n = x.shape[1] // d
    assert x.is_contiguous()
    gated_norm_kernel[(len(x), n)](
        x, z, weight, z.stride(0), eps, N=n, D=d, D_PAD=next_power_of_2(d), num_warps=1, enable_fp_fusion=False
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: the sizes of LFM2 and Qwen3-Next."""
    rows = dict.fromkeys(("positions", "seqs", "row_mask"), "*i32")
    types = dict.fromkeys(("x", "kernel", "state", "out"), "*fp32") | rows | {"m": "i32", "x_stride": "i32"}
    cases = [
        CompileCase(
            "short convolution", convolve_kernel, types, {"C": 2048, "WIDTH": 3, "GATED": True, "BLOCK": BLOCK}, 1
        ),
        CompileCase("convolution", convolve_kernel, types, {"C": 8192, "WIDTH": 4, "GATED": False, "BLOCK": BLOCK}, 1),
    ]
    types = dict.fromkeys(("mixed", "beta", "alpha", "shift", "decay", "state", "out"), "*fp32") | rows
    types |= dict.fromkeys(("m", "beta_stride", "alpha_stride"), "i32") | {"eps": "fp32", "scale": "fp32"}
    shape = {"N": 32, "N_KEY": 16, "DK": 128, "DK_PAD": 128, "DV": 128, "BV": VALUES, "INTERLEAVED": True}
    cases.append(CompileCase("delta rule", delta_kernel, types, shape, 4))
    types = {"x": "*fp32", "z": "*fp32", "weight": "*fp32", "z_stride": "i32", "eps": "fp32"}
    cases.append(CompileCase("gated norm", gated_norm_kernel, types, {"N": 32, "D": 128, "D_PAD": 128}, 1))
    return cases
