"""The hidden values of a feed-forward network for a few rows, and their quantised form in the same launch.

y[m, i] = f(gate[m, i]) * up[m, i], f(x) alone without a gate; times sigmoid(row_gate[m]) where there is one

f: silu, tanh-GELU, ReLU, its square, or with SWIGLU_OAI gate sigmoid(1.702 gate) (up + 1). A limit bounds gate from above and up on both
sides first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.kernels.activation import BLOCK, QUANTISED_TYPES, Activation, quantised_reference, store_quantised
from hotset.kernels.aot import CompileCase
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

BLOCKS_PER_PROGRAM = 16
KINDS = {"silu": 0, "gelu": 1, "relu": 2, "relu squared": 3, "swiglu oai": 4}


@jit
def activated(x: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    if KIND == 0:
        y = tl.div_rn(x, 1.0 + tl.exp(-x))
    elif KIND == 1:
        # 0.5 (1 + tanh(u)) = sigmoid(2 u)
        y = tl.div_rn(x, 1.0 + tl.exp(-1.5957691216 * x * (1.0 + 0.044715 * x * x)))
    elif KIND == 4:
        y = tl.div_rn(x, 1.0 + tl.exp(-1.702 * x))
    else:
        y = tl.maximum(x, 0.0)
        if KIND == 3:
            y *= y
    return y


@jit
def gated(gate: tl.tensor, up: tl.tensor, KIND: tl.constexpr, LIMIT: tl.constexpr) -> tl.tensor:
    if LIMIT > 0:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    if KIND == 4:
        up += 1.0
    return activated(gate, KIND) * up


@jit
def hidden_kernel(
    gate: tl.tensor,  # float32 [m, stride], or None
    up: tl.tensor,  # float32 [m, stride]
    row_gate: tl.tensor,  # float32 [m, row_gate_stride], or None
    y: tl.tensor,  # float32 [m, D]
    q: tl.tensor,  # int8 [m, D], or None as those below
    d: tl.tensor,
    h: tl.tensor,
    s: tl.tensor,
    stride: tl.tensor,
    row_gate_stride: tl.tensor,
    D: tl.constexpr,
    B: tl.constexpr,
    KIND: tl.constexpr,
    LIMIT: tl.constexpr,
) -> None:
    m = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * B + tl.arange(0, B)
    at = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    b = tl.load(up + m * stride + at, mask=at < D, other=0)
    if gate is None:
        value = activated(b, KIND)
    else:
        value = gated(tl.load(gate + m * stride + at, mask=at < D, other=0), b, KIND, LIMIT)
    if row_gate is not None:
        value *= tl.div_rn(1.0, 1.0 + tl.exp(-tl.load(row_gate + m * row_gate_stride)))
    tl.store(y + m * D + at, value, mask=at < D)
    if q is not None:
        rows = (q + m * D, d + m * (D // 32), h + m * (D // 16), s + m * (D // 32))
        store_quantised(value, block, block < D // 32, rows[0], rows[1], rows[2], rows[3])


def hidden_values(
    gate: torch.Tensor | None,
    up: torch.Tensor,
    row_gate: torch.Tensor | None,
    out: Activation,
    kind: str,
    limit: float = 0.0,
) -> None:
    """Fill `out` [m, D], in every form that it has, from gate and up float32 [m, >= D] of one stride and row_gate [m, >= 1]."""
    m, width = out.shape
    assert up.stride(1) == 1
    assert gate is None or gate.stride() == up.stride()
    assert out.f32.is_contiguous()
    hidden_kernel[(m, -(-width // (BLOCK * BLOCKS_PER_PROGRAM)))](
        gate,
        up,
        row_gate,
        *out.tensors,
        up.stride(0),
        0 if row_gate is None else row_gate.stride(0),
        D=width,
        B=BLOCKS_PER_PROGRAM,
        KIND=KINDS[kind],
        LIMIT=limit,
        num_warps=1,
        enable_fp_fusion=False,
    )


def reference(
    gate: torch.Tensor | None, up: torch.Tensor, row_gate: torch.Tensor | None, kind: str, limit: float = 0.0
) -> Activation:
    """Compute the same in plain PyTorch from gate and up [m, D]."""
    import torch
    from torch.nn.functional import gelu, relu, silu

    plain = {"silu": silu, "relu": relu, "gelu": lambda x: gelu(x, approximate="tanh")}
    plain |= {"relu squared": lambda x: relu(x).square(), "swiglu oai": lambda x: x * torch.sigmoid(1.702 * x)}
    if gate is None:
        y = plain[kind](up)
    else:
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        y = plain[kind](gate) * (up + 1 if kind == "swiglu oai" else up)
    if row_gate is not None:
        y = y * torch.sigmoid(row_gate[:, :1])
    return Activation(y) if y.shape[1] % BLOCK else quantised_reference(y)


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"gate": "*fp32", "up": "*fp32", "y": "*fp32", "stride": "i32", "row_gate_stride": "i32"}
    shape = {"D": 1408, "B": BLOCKS_PER_PROGRAM}
    plain = shape | {"row_gate": None, "KIND": 0, "LIMIT": 0.0}
    other = shape | dict.fromkeys(QUANTISED_TYPES) | {"KIND": 4, "LIMIT": 7.0}
    return [
        CompileCase("hidden", hidden_kernel, types | QUANTISED_TYPES, plain, num_warps=1),
        CompileCase("hidden clamped", hidden_kernel, types | {"row_gate": "*fp32"}, other, num_warps=1),
    ]
