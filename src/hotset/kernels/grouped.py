"""The experts of a chunk on tensor cores: the rows of each expert together, whose matrices lie where the address table says.

hidden[p] = silu(gate x[row]) * up x[row],  z[pair] = down hidden[p],  out[row] += sum_j weight[row, j] z[row k + j]
(p = place in the plan, pair = plan.pairs[p] = row k + j)

The bits of a row depend neither on the other rows of its tile nor on the chunk or the wave.

`hidden` and `z` are float16 with a power of two per row: as float32 they would take 370 MB for 4,096 rows of Qwen3-30B-A3B. bfloat16
would hold the range but lose 1e-3, float16 alone would lose the range. A row of `hidden` is computed in tiles of columns, each with a
scale of its own until `level` makes them one. A row of `z` takes 2^12 times the scale of its `hidden`, whose halves are below 2^15: a
row of weights may add up to 8,192.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hotset.kernels.aot import CompileCase
from hotset.kernels.chunk_product import INPUT_TYPES, LAYOUTS, chunk_case, launch_options, matrix_constants
from hotset.kernels.counts import cdiv
from hotset.kernels.grouped_kernels import combine_rows_kernel, down_kernel, gate_up_kernel
from hotset.kernels.half import ChunkRows, in_halves, level
from hotset.kernels.tuning import CHUNK_TILES, ChunkTuning, chunk_tuning_for
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout
from hotset.quant.tiles import ORDER_WARPGROUP

if TYPE_CHECKING:
    import torch

    from hotset.kernels.chunk_plan import ChunkPlan

COMBINE_BLOCK = 512
LEVEL_PROGRAMS = 8  # per multiprocessor


@dataclass(frozen=True, eq=False)
class GroupedBuffers:
    """Scratch of a chunk's expert step: rows of `hidden` in the plan's order, rows of `z` by pair.

    Both are float16 with scales, or float32 where `down` is multiplied in float32.
    """

    hidden: torch.Tensor  # [pairs, F]
    hidden_part: torch.Tensor | None  # float32 [pairs, parts]
    hidden_scale: torch.Tensor | None  # float32 [pairs]
    z: torch.Tensor  # [pairs, padded D]
    z_scale: torch.Tensor | None  # float32 [pairs]

    @classmethod
    def empty(
        cls, layout: SpanLayout, max_pairs: int, device: torch.device | str, tuning: ChunkTuning | None = None
    ) -> GroupedBuffers:
        """Allocate for spans of this layout and chunks of up to `max_pairs` = rows * n_picks."""
        import torch

        tuning = tuning or chunk_tuning_for(torch.device(device))
        gate, down = layout.matrix("gate"), layout.matrix("down")
        if not in_halves(down.fmt, down.cols):
            floats = torch.empty(max_pairs, down.cols, device=device)
            return cls(floats, None, None, torch.empty(max_pairs, down.padded_rows, device=device), None)
        hidden_parts = gate.padded_rows // tuning.gate_up.fit(gate.padded_rows)
        return cls(
            torch.empty(max_pairs, down.cols, dtype=torch.float16, device=device),
            torch.empty(max_pairs, hidden_parts, device=device),
            torch.empty(max_pairs, device=device),
            torch.empty(max_pairs, down.padded_rows, dtype=torch.float16, device=device),
            torch.empty(max_pairs, device=device),
        )

    @property
    def is_half(self) -> bool:
        return self.hidden_part is not None


def gate_up_wave(
    x: ChunkRows,
    address: torch.Tensor,
    plan: ChunkPlan,
    wave: int,
    layout: SpanLayout,
    buffers: GroupedBuffers,
    tuning: ChunkTuning | None = None,
) -> None:
    """Compute `hidden` of a wave's pairs; address int64 [n_experts] says where the span of each of its experts lies now."""
    assert x.f32.is_contiguous()
    assert address.numel() >= plan.n_experts
    tuning = tuning or chunk_tuning_for(x.f32.device)
    assert plan.tile == tuning.expert_tokens
    constants = _gate_up_launch(layout, tuning)
    assert x.shape[1] == constants["COLS"]
    assert buffers.hidden.shape[1] == constants["F"]
    gate_up_kernel[(tuning.n_multiprocessors * tuning.gate_up.programs,)](
        x.half,
        x.scale,
        x.f32,
        address,
        plan.pairs,
        plan.tiles,
        plan.wave_tiles,
        *((buffers.hidden, buffers.hidden_part, None) if buffers.is_half else (None, None, buffers.hidden)),
        wave,
        K=plan.n_picks,
        **constants,
    )
    if buffers.hidden_part is not None and buffers.hidden_scale is not None:
        n_programs = LEVEL_PROGRAMS * tuning.n_multiprocessors
        level(buffers.hidden, buffers.hidden_part, buffers.hidden_scale, plan.wave_pairs, wave, n_programs)


def down_wave(
    address: torch.Tensor,
    plan: ChunkPlan,
    wave: int,
    layout: SpanLayout,
    buffers: GroupedBuffers,
    tuning: ChunkTuning | None = None,
) -> None:
    """Compute `z` of a wave's pairs from their `hidden`."""
    tuning = tuning or chunk_tuning_for(buffers.z.device)
    assert plan.tile == tuning.expert_tokens
    constants = _down_launch(layout, tuning)
    assert buffers.z.shape[1] == constants["ROWS"]
    hidden = (buffers.hidden, buffers.hidden_scale, None) if buffers.is_half else (None, None, buffers.hidden)
    down_kernel[(tuning.n_multiprocessors * tuning.down.programs,)](
        *hidden,
        address,
        plan.pairs,
        plan.tiles,
        plan.wave_tiles,
        buffers.z,
        buffers.z_scale,
        wave,
        **constants,
    )


def combine_rows(buffers: GroupedBuffers, weights: torch.Tensor, out: torch.Tensor) -> None:
    """Add each row's picks, weighted (float32 [m, k]) and in their order, to out float32 [m, D], once all waves are done."""
    m, width = out.shape
    stride = buffers.z.shape[1]
    assert weights.shape[0] == m
    assert weights.is_contiguous()
    assert out.is_contiguous()
    combine_rows_kernel[(m, cdiv(width, COMBINE_BLOCK))](
        buffers.z,
        buffers.z_scale,
        weights,
        out,
        D=width,
        STRIDE=stride,
        K=weights.shape[1],
        BLOCK=COMBINE_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )


# The same at every launch of a layer, and slow to put together.
@lru_cache(LAYOUTS)
def _gate_up_launch(layout: SpanLayout, tuning: ChunkTuning) -> dict[str, Any]:
    return _gate_up_constants(layout, tuning) | launch_options(tuning.gate_up)


@lru_cache(LAYOUTS)
def _down_launch(layout: SpanLayout, tuning: ChunkTuning) -> dict[str, Any]:
    return _down_constants(layout, tuning) | launch_options(tuning.down)


def _gate_up_constants(layout: SpanLayout, tuning: ChunkTuning) -> dict[str, Any]:
    gate, up = layout.matrix("gate"), layout.matrix("up")
    assert (gate.rows, gate.cols) == (up.rows, up.cols)
    assert gate.rows == layout.matrix("down").cols
    tile = tuning.gate_up
    of_gate = {f"GATE_{name}": value for name, value in matrix_constants(gate, tile).items()}
    of_up = {f"UP_{name}": value for name, value in matrix_constants(up, tile).items()}
    return {
        "F": gate.rows,
        "ROWS": gate.padded_rows,
        "COLS": gate.cols,
        "GATE": layout.start("gate"),
        "UP": layout.start("up"),
        **of_gate,
        **of_up,
        "ALIKE": gate.fmt is up.fmt and in_halves(gate.fmt, gate.cols),
        "ORDER": tuning.order,
        "R": tile.fit(gate.padded_rows),
        "TOKENS": tile.tokens,
        "FEW": tile.few,
    }


def _down_constants(layout: SpanLayout, tuning: ChunkTuning) -> dict[str, Any]:
    matrix = layout.matrix("down")
    return {
        "ROWS": matrix.padded_rows,
        "COLS": matrix.cols,
        "START": layout.start("down"),
        **matrix_constants(matrix, tuning.down),
        "ORDER": tuning.order,
        "R": tuning.down.fit(matrix.padded_rows),
        "TOKENS": tuning.down.tokens,
        "FEW": tuning.down.few,
    }


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time: formats alike and not, float32."""
    tuning = ChunkTuning(order=ORDER_WARPGROUP, n_multiprocessors=132, **CHUNK_TILES["hopper"])
    combined = {"D": 2880, "STRIDE": 2880, "K": 4, "BLOCK": COMBINE_BLOCK}
    types = {"z": "*fp16", "z_scale": "*fp32", "weight": "*fp32", "out": "*fp32"}
    cases = [CompileCase("combine_rows", combine_rows_kernel, types, combined)]
    for roles in (("Q4_K", "Q4_K", "Q6_K"), ("Q5_K", "Q4_K", "Q5_0"), ("F16", "F16", "F32")):
        cases += _expert_cases(roles, tuning)
    return cases


def _expert_cases(roles: tuple[str, ...], tuning: ChunkTuning) -> list[CompileCase]:
    by_name = {fmt.name: fmt for fmt in FORMATS.values()}
    shapes = ((768, 2048), (768, 2048), (2048, 768))
    matrices = [MatrixLayout(by_name[name], *shape) for name, shape in zip(roles, shapes, strict=True)]
    layout = SpanLayout(("gate", "up", "down"), tuple(matrices))
    plan = {"address": "*i64", "wave": "i32"} | dict.fromkeys(("pairs", "tiles", "wave_tiles"), "*i32")
    half = in_halves(matrices[2].fmt, matrices[2].cols)

    def one_of(prefix: str, forms: dict[str, str]) -> tuple[dict[str, str], dict[str, None]]:
        kept = [f for f in forms if (f != "f32") == half]
        return {f"{prefix}{f}": forms[f] for f in kept}, {f"{prefix}{f}": None for f in forms if f not in kept}

    hidden, no_hidden = one_of("hidden_", {"half": "*fp16", "part": "*fp32", "f32": "*fp32"})
    z, no_z = ({"z": "*fp16", "z_scale": "*fp32"}, {}) if half else ({"z": "*fp32"}, {"z_scale": None})
    x, no_x = one_of("", INPUT_TYPES)
    name = " ".join(roles)
    gate_up = {**_gate_up_constants(layout, tuning), **no_hidden, "K": 8}
    down = {**_down_constants(layout, tuning), **no_z, **no_x}
    return [
        chunk_case(f"gate_up chunk {name}", gate_up_kernel, plan | INPUT_TYPES | hidden, gate_up, tuning.gate_up),
        chunk_case(f"down chunk {name}", down_kernel, plan | x | z, down, tuning.down),
    ]
