"""The experts of one layer for a few rows: each pick's expert is read where its address says, hit or miss alike.

hidden[p] = f(gate x[m]) * up x[m],  z[p] = down hidden[p],  out[m] += sum_j weight[m, j] z[m k + j]   (p = m k + j)

f is silu or what the model has instead; an expert's biases and scales, where it has such, are by expert and so found by its pick.

Each pick writes its own row and the sum is taken in the order of picks. Address 0 means no expert: nothing is computed or added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotset.kernels.activation import QUANTISED_TYPES, Activation, store_quantised
from hotset.kernels.aot import CompileCase
from hotset.kernels.hidden import KINDS, gated
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
def scaled_and_shifted(
    value: tl.tensor,  # float32 [R]
    scale: tl.tensor,
    bias: tl.tensor,
    picks: tl.tensor,
    pick: tl.tensor,
    row: tl.tensor,  # [R]
    N: tl.constexpr,
) -> tl.tensor:
    if scale is not None:
        value *= tl.load(scale + tl.load(picks + pick))
    if bias is not None:
        value += tl.load(bias + tl.load(picks + pick).to(tl.int64) * N + row, mask=row < N, other=0)
    return value


@jit
def gate_up_kernel(
    f32: tl.tensor,  # float32 [m, COLS]
    q: tl.tensor,  # int8 [m, COLS], or None as those below
    d: tl.tensor,  # float32 [m, COLS / 32]
    h: tl.tensor,  # int32 [m, COLS / 16]
    s: tl.tensor,  # float32 [m, COLS / 32]
    address: tl.tensor,  # int64 [m * K]
    picks: tl.tensor,  # int32 [m * K], or None as those below
    gate_bias: tl.tensor,  # float32 [experts, F]
    up_bias: tl.tensor,
    gate_scale: tl.tensor,  # float32 [experts]
    up_scale: tl.tensor,
    input_weight: tl.tensor,  # float32 [m * K], multiplies x
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
    KIND: tl.constexpr,
    LIMIT: tl.constexpr,
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
        if input_weight is not None:
            gate *= tl.load(input_weight + pick)
            up *= tl.load(input_weight + pick)
        gate = scaled_and_shifted(gate, gate_scale, gate_bias, picks, pick, row, F)
        up = scaled_and_shifted(up, up_scale, up_bias, picks, pick, row, F)
        # float32 throughout: silu(300) * 300 is too large for float16.
        y = gated(gate, up, KIND, LIMIT)
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
    picks: tl.tensor,  # int32 [m * K], or None as those below
    bias: tl.tensor,  # float32 [experts, ROWS]
    scale: tl.tensor,  # float32 [experts]
    z: tl.tensor,  # float32 [m * K, PADDED_ROWS]
    ROWS: tl.constexpr,
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
        y = scaled_and_shifted(y, scale, bias, picks, pick, row, ROWS)
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
        if weight is not None:
            value *= tl.load(weight + pick)
        total = tl.where(real, total + value, total)
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


@dataclass(frozen=True, eq=False)
class ExpertExtras:
    """What experts have beside their matrices: biases float32 [experts, rows] and scales [experts], and how gate and up are joined.

    `picks` int32 [m * k] says whose they are; `input_weight` float32 [m * k] multiplies what experts are given.
    """

    kind: str = "silu"
    limit: float = 0.0
    picks: torch.Tensor | None = None
    gate_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    gate_scale: torch.Tensor | None = None
    up_scale: torch.Tensor | None = None
    down_scale: torch.Tensor | None = None
    input_weight: torch.Tensor | None = None


PLAIN = ExpertExtras()


def gate_up(
    x: Activation,
    address: torch.Tensor,
    layout: SpanLayout,
    hidden: Activation,
    tuning: Tuning | None = None,
    extras: ExpertExtras = PLAIN,
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
        extras.picks,
        extras.gate_bias,
        extras.up_bias,
        extras.gate_scale,
        extras.up_scale,
        extras.input_weight,
        hidden.f32,
        *quantised,
        K=n_picks // m,
        KIND=KINDS[extras.kind],
        LIMIT=extras.limit,
        **constants,
        num_warps=warps,
        enable_fp_fusion=False,
    )


def down(
    hidden: Activation,
    address: torch.Tensor,
    layout: SpanLayout,
    z: torch.Tensor,
    tuning: Tuning | None = None,
    extras: ExpertExtras = PLAIN,
) -> None:
    """Compute z [picks, padded D] of every pick."""
    matrix = layout.matrix("down")
    n_picks = address.numel()
    assert hidden.shape == (n_picks, matrix.cols)
    assert z.shape == (n_picks, matrix.padded_rows)
    tuning = tuning or tuning_for(z.device)
    constants, warps = _down_constants(layout, tuning, quantised=hidden.q is not None)
    down_kernel[(n_picks, matrix.padded_rows // constants["R"])](
        *hidden.tensors,
        address,
        extras.picks,
        extras.down_bias,
        extras.down_scale,
        z,
        **constants,
        num_warps=warps,
        enable_fp_fusion=False,
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
        "ROWS": matrix.rows,
        "COLS": matrix.cols,
        "PADDED_ROWS": matrix.padded_rows,
        "START": layout.start("down"),
        "DP4A": tuning.dp4a,
    }
    return constants | own, warps


def combine(z: torch.Tensor, weights: torch.Tensor | None, address: torch.Tensor, out: torch.Tensor) -> None:
    """Add each row's picks, weighted (None: not) and in their order, to out float32 [m, D]."""
    m, width = out.shape
    n_picks = address.numel()
    assert n_picks == len(z)
    assert weights is None or weights.numel() == n_picks
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
    constants |= absent | hidden_absent | {"K": 8, "KIND": 0, "LIMIT": 0.0} | dict.fromkeys((*EXTRA_TYPES, "picks"))
    down_constants, down_warps = _down_constants(layout, tuning, quantised=quantised)
    down_constants |= absent | dict.fromkeys(("picks", "bias", "scale"))
    return [
        CompileCase(f"gate_up {name}", gate_up_kernel, gate_up_types, constants, warps),
        CompileCase(f"down {name}", down_kernel, types | {"z": "*fp32"}, down_constants, down_warps),
        *_cases_with_extras(gate_up_types, constants, types, down_constants, name, warps),
    ]


EXTRA_TYPES = dict.fromkeys(("gate_bias", "up_bias", "gate_scale", "up_scale", "input_weight"), "*fp32")


def _cases_with_extras(
    types: dict[str, str],
    constants: dict[str, Any],
    down_types: dict[str, str],
    down_constants: dict[str, Any],
    name: str,
    warps: int,
) -> list[CompileCase]:
    """The same with everything that experts may have."""
    extras = EXTRA_TYPES | {"picks": "*i32"}
    kept = {k: v for k, v in constants.items() if k not in extras} | {"KIND": 4, "LIMIT": 7.0}
    down_extras = {"picks": "*i32", "bias": "*fp32", "scale": "*fp32", "z": "*fp32"}
    down_kept = {k: v for k, v in down_constants.items() if k not in down_extras}
    return [
        CompileCase(f"gate_up {name} with extras", gate_up_kernel, types | extras, kept, warps),
        CompileCase(f"down {name} with extras", down_kernel, down_types | down_extras, down_kept, warps),
    ]
