"""The experts of one layer for a few rows: each pick's expert is read where its address says, hit or miss alike.

hidden[p] = silu(gate x[m]) * up x[m],  z[p] = down hidden[p],  out[m] += sum_j weight[m, j] z[m k + j]   (p = m k + j)

Each pick writes its own row and the sum is taken in the order of picks. Address 0 means no expert: nothing is computed or added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotset.kernels.activation import QUANTISED_TYPES, Activation, store_quantised
from hotset.kernels.aot import CompileCase
from hotset.kernels.matvec import constants_of, in_integers, product
from hotset.kernels.tuning import TILES, Tuning, tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.quant.layout import QuantFormat

COMBINE_BLOCK = 256


@jit
def gate_up_kernel(
    f32: tl.tensor,  # float32 [m, COLS]
    q: tl.tensor,  # int8 [m, COLS], or None as those below
    d: tl.tensor,  # float32 [m, COLS / 32]
    h: tl.tensor,  # int32 [m, COLS / 16]
    s: tl.tensor,  # float32 [m, COLS / 32]
    address: tl.tensor,  # int64 [m * K]
    hidden: tl.tensor,  # float32 [m * K, F]
    hidden_q: tl.tensor,  # its quantised form, or None; written instead of it
    hidden_d: tl.tensor,
    hidden_h: tl.tensor,
    hidden_s: tl.tensor,
    K: tl.constexpr,
    F: tl.constexpr,
    COLS: tl.constexpr,
    PADDED_ROWS: tl.constexpr,
    GATE: tl.constexpr,  # the start of each matrix in the span
    UP: tl.constexpr,
    GATE_MULTIPLY: tl.constexpr,
    UP_MULTIPLY: tl.constexpr,
    GATE_UNIT: tl.constexpr,
    UP_UNIT: tl.constexpr,
    GATE_S: tl.constexpr,
    UP_S: tl.constexpr,
    R: tl.constexpr,
    DP4A: tl.constexpr,
) -> None:
    pick = tl.program_id(0)
    span = tl.load(address + pick)
    if span != 0:
        base = tl.multiple_of(span.to(tl.pointer_type(tl.uint8)), 16)
        row = tl.program_id(1) * R + tl.arange(0, R)
        x = (f32, q, d, h, s)
        m = pick // K
        gate = product(base + GATE, row, x, m, PADDED_ROWS, COLS, GATE_MULTIPLY, GATE_UNIT, GATE_S, DP4A)
        up = product(base + UP, row, x, m, PADDED_ROWS, COLS, UP_MULTIPLY, UP_UNIT, UP_S, DP4A)
        # float32 throughout: silu(300) * 300 is too large for float16.
        y = tl.div_rn(gate, 1.0 + tl.exp(-gate)) * up
        if hidden_q is None:
            tl.store(hidden + pick * F + row, y, mask=row < F)
        else:
            block = tl.program_id(1) * (R // 32) + tl.arange(0, R // 32)
            blocks = tl.reshape(y, [R // 32, 32])
            at = pick * (F // 32)
            store_quantised(
                blocks, block, block >= 0, hidden_q + pick * F, hidden_d + at, hidden_h + 2 * at, hidden_s + at
            )


@jit
def down_kernel(
    f32: tl.tensor,  # float32 [m * K, COLS]
    q: tl.tensor,  # int8 [m * K, COLS], or None as those below
    d: tl.tensor,
    h: tl.tensor,
    s: tl.tensor,
    address: tl.tensor,  # int64 [m * K]
    z: tl.tensor,  # float32 [m * K, PADDED_ROWS]
    COLS: tl.constexpr,
    PADDED_ROWS: tl.constexpr,
    START: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    DP4A: tl.constexpr,
) -> None:
    pick = tl.program_id(0)
    span = tl.load(address + pick)
    if span != 0:
        base = tl.multiple_of(span.to(tl.pointer_type(tl.uint8)), 16)
        row = tl.program_id(1) * R + tl.arange(0, R)
        y = product(base + START, row, (f32, q, d, h, s), pick, PADDED_ROWS, COLS, MULTIPLY, UNIT, S, DP4A)
        tl.store(z + pick * PADDED_ROWS + row, y)


@jit
def combine_kernel(
    z: tl.tensor,  # float32 [m * K, stride]
    weight: tl.tensor,  # float32 [m * K]
    address: tl.tensor,  # int64 [m * K]
    out: tl.tensor,  # float32 [m, D]
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    m = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(out + m * D + i, mask=i < D)
    for j in tl.static_range(K):
        pick = m * K + j
        real = tl.load(address + pick) != 0
        value = tl.load(z + pick * STRIDE + i, mask=(i < D) & real, other=0)
        total = tl.where(real, total + tl.load(weight + pick) * value, total)
    tl.store(out + m * D + i, total, mask=i < D)


@dataclass(frozen=True, eq=False)
class ExpertBuffers:
    """Scratch of the expert step, which all layers of one shape share: `hidden` [picks, F], `z` [picks, padded D]."""

    hidden: Activation
    z: torch.Tensor

    @classmethod
    def empty(cls, layout: SpanLayout, n_picks: int, device: torch.device | str, *, quantised: bool) -> ExpertBuffers:
        import torch

        down = layout.matrix("down")
        return cls(
            Activation.empty(n_picks, down.cols, device, quantised=quantised),
            torch.empty(n_picks, down.padded_rows, device=device),
        )


def gate_up(
    x: Activation, address: torch.Tensor, layout: SpanLayout, hidden: Activation, tuning: Tuning | None = None
) -> None:
    """Compute hidden [picks, F] of every pick; its quantised form alone where `down` multiplies in integers."""
    m, cols = x.shape
    n_picks = address.numel()
    assert n_picks % m == 0
    assert cols == layout.matrix("gate").cols
    assert hidden.shape == (n_picks, layout.matrix("down").cols)
    tuning = tuning or tuning_for(x.f32.device)
    constants, warps = _gate_up_constants(layout, tuning, quantised=x.q is not None)
    quantised = hidden.tensors[1:] if in_integers(layout.matrix("down").fmt, hidden) else (None,) * 4
    gate_up_kernel[(n_picks, constants["PADDED_ROWS"] // constants["R"])](
        *x.tensors,
        address,
        hidden.f32,
        *quantised,
        K=n_picks // m,
        **constants,
        num_warps=warps,
        enable_fp_fusion=False,
    )


def down(
    hidden: Activation, address: torch.Tensor, layout: SpanLayout, z: torch.Tensor, tuning: Tuning | None = None
) -> None:
    """Compute z [picks, padded D] of every pick."""
    matrix = layout.matrix("down")
    n_picks = address.numel()
    assert hidden.shape == (n_picks, matrix.cols)
    assert z.shape == (n_picks, matrix.padded_rows)
    tuning = tuning or tuning_for(z.device)
    constants, warps = _down_constants(layout, tuning, quantised=hidden.q is not None)
    down_kernel[(n_picks, matrix.padded_rows // constants["R"])](
        *hidden.tensors, address, z, **constants, num_warps=warps, enable_fp_fusion=False
    )


def _gate_up_constants(layout: SpanLayout, tuning: Tuning, *, quantised: bool) -> tuple[dict[str, Any], int]:
    gate, up = layout.matrix("gate"), layout.matrix("up")
    assert (gate.rows, gate.cols) == (up.rows, up.cols)
    assert gate.rows == layout.matrix("down").cols
    by, warps = constants_of(gate, tuning.gate_up, integer=quantised and gate.fmt.integer)
    by_up, warps_up = constants_of(up, tuning.gate_up, integer=quantised and up.fmt.integer)
    constants = {
        "F": gate.rows,
        "COLS": gate.cols,
        "PADDED_ROWS": gate.padded_rows,
        "GATE": layout.start("gate"),
        "UP": layout.start("up"),
        "GATE_MULTIPLY": by["MULTIPLY"],
        "UP_MULTIPLY": by_up["MULTIPLY"],
        "GATE_UNIT": by["UNIT"],
        "UP_UNIT": by_up["UNIT"],
        "GATE_S": by["S"],
        "UP_S": by_up["S"],
        "R": by["R"],
        "DP4A": tuning.dp4a,
    }
    return constants, max(warps, warps_up)


def _down_constants(layout: SpanLayout, tuning: Tuning, *, quantised: bool) -> tuple[dict[str, Any], int]:
    matrix = layout.matrix("down")
    constants, warps = constants_of(matrix, tuning.down, integer=quantised and matrix.fmt.integer)
    own = {
        "COLS": matrix.cols,
        "PADDED_ROWS": matrix.padded_rows,
        "START": layout.start("down"),
        "DP4A": tuning.dp4a,
    }
    return constants | own, warps


def combine(z: torch.Tensor, weights: torch.Tensor, address: torch.Tensor, out: torch.Tensor) -> None:
    """Add each row's picks, weighted and in their order, to out float32 [m, D]."""
    m, width = out.shape
    n_picks = address.numel()
    assert weights.numel() == n_picks == len(z)
    assert out.is_contiguous()
    combine_kernel[(m, -(-width // COMBINE_BLOCK))](
        z,
        weights,
        address,
        out,
        D=width,
        STRIDE=z.shape[1],
        K=n_picks // m,
        BLOCK=COMBINE_BLOCK,
        num_warps=2,
        enable_fp_fusion=False,
    )


def expert_step(
    x: Activation,
    address: torch.Tensor,
    weights: torch.Tensor,
    layout: SpanLayout,
    buffers: ExpertBuffers,
    out: torch.Tensor,
    tuning: Tuning | None = None,
) -> None:
    """Add the experts' answer to out float32 [m, D]: x [m, D], address int64 and weights float32 [m * k], row by row."""
    n_picks = address.numel()
    hidden, z = buffers.hidden.rows(n_picks), buffers.z[:n_picks]
    gate_up(x, address, layout, hidden, tuning)
    down(hidden, address, layout, z, tuning)
    combine(z, weights, address, out)


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: formats alike, formats that differ, and float."""
    tuning = Tuning(**TILES["large"], dp4a=True)
    combined = {"D": 2880, "STRIDE": 2880, "K": 4, "BLOCK": COMBINE_BLOCK}
    types = {"z": "*fp32", "weight": "*fp32", "address": "*i64", "out": "*fp32"}
    cases = [CompileCase("combine", combine_kernel, types, combined, num_warps=2)]
    for roles in (("Q4_K", "Q4_K", "Q6_K"), ("Q5_K", "Q4_K", "Q5_0"), ("F16", "Q8_0", "BF16")):
        matrices = [MatrixLayout(_format(name), *shape) for name, shape in zip(roles, SHAPES, strict=True)]
        layout = SpanLayout(("gate", "up", "down"), tuple(matrices))
        for quantised in (True, False):
            cases += _cases(layout, tuning, " ".join((*roles, "fast" if quantised else "reference")), quantised)
    return cases


SHAPES = ((768, 1024), (768, 1024), (1024, 768))


def _format(name: str) -> QuantFormat:
    return next(f for f in FORMATS.values() if f.name == name)


def _cases(layout: SpanLayout, tuning: Tuning, name: str, quantised: bool) -> list[CompileCase]:
    types = {"f32": "*fp32", "address": "*i64"} | (QUANTISED_TYPES if quantised else {})
    absent = {} if quantised else dict.fromkeys(QUANTISED_TYPES)
    hidden_types = {f"hidden_{n}": t for n, t in QUANTISED_TYPES.items()}
    hidden_quantised = quantised and layout.matrix("down").fmt.integer
    hidden_absent = {} if hidden_quantised else dict.fromkeys(hidden_types)
    gate_up_types = types | {"hidden": "*fp32"} | (hidden_types if hidden_quantised else {})
    constants, warps = _gate_up_constants(layout, tuning, quantised=quantised)
    constants |= absent | hidden_absent | {"K": 8}
    down_constants, down_warps = _down_constants(layout, tuning, quantised=quantised)
    return [
        CompileCase(f"gate_up {name}", gate_up_kernel, gate_up_types, constants, warps),
        CompileCase(f"down {name}", down_kernel, types | {"z": "*fp32"}, down_constants | absent, down_warps),
    ]
