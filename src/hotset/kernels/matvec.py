"""A quantised matrix times each of a few rows of activations.

out[m, r] = scale sum_k W[r, k] x[m, k] (+ bias[r]), + out[m, r] if asked

A program takes one tile of rows and one m, so that a row's result depends on nothing but itself and the matrix. Where the activations
have a quantised form and the format multiplies in integers, blocks of 32 are summed exactly in int32; else all is float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotset.kernels.activation import QUANTISED_TYPES, Activation
from hotset.kernels.aot import CompileCase
from hotset.kernels.tuning import Tile, Tuning, tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.quant.layout import QuantFormat


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A matrix in planes (uint8 [layout.n_bytes]) on a device; `data` begins at a multiple of 16 bytes.

    Products are multiplied by `scale`, and `bias` float32 [padded rows] is added. Several matrices of one layout follow each other; `address` int64 [rows of a step * n]
    then says where the matrix of each row of activations is, which take them in turn.
    """

    layout: MatrixLayout
    data: torch.Tensor
    bias: torch.Tensor | None = None
    address: torch.Tensor | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        assert self.data.is_contiguous()
        assert self.data.numel() % self.layout.n_bytes == 0
        assert self.data.data_ptr() % 16 == 0
        assert self.bias is None or self.bias.shape == (self.layout.padded_rows,)


# UNIT > 0: MULTIPLY is the format's `dot`, S units at once; UNIT == 0: it is the format's `load`, S elements at once.
@jit
def product(
    base: tl.tensor,  # uint8, the matrix's planes
    row: tl.tensor,  # [R]
    x: tl.tensor,  # (f32, q, d, h, s), pointers of an Activation
    m: tl.tensor,  # its row
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    S: tl.constexpr,
    DP4A: tl.constexpr,
) -> tl.tensor:
    """Multiply R rows of a matrix by one row of activations: float32 [R]."""
    f32, q, d, h, s = x
    across = tl.arange(0, S)[None, :]
    acc = tl.zeros([row.shape[0], S], tl.float32)
    if UNIT > 0:
        own = (q + m * COLS, d + m * (COLS // 32), h + m * (COLS // 16), s + m * (COLS // 32))
        for first in range(0, COLS // UNIT, S):
            unit = first + across
            acc = MULTIPLY(acc, base, row[:, None], unit, unit < COLS // UNIT, own, padded_rows, COLS, DP4A)
    else:
        for first in range(0, COLS, S):
            k = first + across
            value = MULTIPLY(base, row[:, None], tl.minimum(k, COLS - 1), padded_rows, COLS)
            acc += value * tl.load(f32 + m * COLS + k, mask=k < COLS, other=0)
    return tl.sum(acc, 1)


@jit
def matvec_kernel(
    f32: tl.tensor,  # float32 [m, COLS]
    q: tl.tensor,  # int8 [m, COLS], or None as those below
    d: tl.tensor,  # float32 [m, COLS / 32]
    h: tl.tensor,  # int32 [m, COLS / 16]
    s: tl.tensor,  # float32 [m, COLS / 32]
    base: tl.tensor,  # uint8, the matrix's planes
    bias: tl.tensor,  # float32 [padded_rows], or None
    out: tl.tensor,  # float32 [m, padded_rows]
    padded_rows: tl.tensor,
    COLS: tl.constexpr,
    MULTIPLY: tl.constexpr,
    UNIT: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    ADD: tl.constexpr,
    DP4A: tl.constexpr,
    SCALE: tl.constexpr,
) -> None:
    m = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * R + tl.arange(0, R)
    y = product(base, row, (f32, q, d, h, s), m, padded_rows, COLS, MULTIPLY, UNIT, S, DP4A)
    at = out + m * padded_rows + row
    if SCALE != 1.0:
        y *= SCALE
    if bias is not None:
        y += tl.load(bias + row)
    if ADD:
        y += tl.load(at)
    tl.store(at, y)


def constants_of(layout: MatrixLayout, tile: Tile, *, integer: bool) -> tuple[dict[str, Any], int]:
    """Return the constants of `product` for a matrix, with the rows R of a tile, and the number of warps."""
    fmt = layout.fmt
    if integer:
        tile = tile.fit(layout.padded_rows, layout.cols // fmt.unit)
        constants = {"MULTIPLY": fmt.dot, "UNIT": fmt.unit, "S": tile.side_by_side, "R": tile.rows}
    else:
        # Four elements of a row at once keep more loads in flight.
        tile = tile.fit(layout.padded_rows, layout.cols // 4)
        constants = {"MULTIPLY": fmt.load, "UNIT": 0, "S": 4 * tile.side_by_side, "R": tile.rows}
    return constants, tile.warps


def in_integers(fmt: QuantFormat, x: Activation) -> bool:
    """Say whether products of a format with these activations are taken in integers."""
    return fmt.integer and x.q is not None


def matvec(
    x: Activation, weight: DeviceMatrix, out: torch.Tensor, *, add: bool = False, tuning: Tuning | None = None
) -> None:
    """Multiply rows x [m, cols] by a matrix into out float32 [m, padded_rows], or add to it."""
    layout = weight.layout
    m, cols = x.shape
    assert cols == layout.cols
    assert out.shape == (m, layout.padded_rows)
    assert out.is_contiguous()
    tuning = tuning or tuning_for(out.device)
    integer = in_integers(layout.fmt, x)
    tile = tuning.matvec if integer else tuning.matvec_float
    constants, warps = constants_of(layout, tile, integer=integer)
    matvec_kernel[(m, layout.padded_rows // constants["R"])](
        *x.tensors,
        weight.data,
        weight.bias,
        out,
        layout.padded_rows,
        COLS=cols,
        ADD=add,
        DP4A=tuning.dp4a,
        SCALE=weight.scale,
        **constants,
        num_warps=warps,
        enable_fp_fusion=False,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: every format in float, and in integers where it can."""
    types = {"f32": "*fp32", "base": "*u8", "out": "*fp32", "padded_rows": "i32"}
    absent = dict.fromkeys(QUANTISED_TYPES)
    cases = []
    for fmt in FORMATS.values():
        for integer in (False, True)[: 1 + fmt.integer]:
            constants, warps = constants_of(MatrixLayout(fmt, 48, 768), Tile(rows=16, warps=2), integer=integer)
            cases.append(
                CompileCase(
                    name=f"matvec {fmt.name} {'int8' if integer else 'float'}",
                    kernel=matvec_kernel,
                    types=types | (QUANTISED_TYPES if integer else {}),
                    constants=constants
                    | ({} if integer else absent)
                    | {"COLS": 768, "ADD": integer, "DP4A": True, "SCALE": 1.0, "bias": None},
                    num_warps=warps,
                    divisible=("padded_rows",),
                )
            )
    return cases
