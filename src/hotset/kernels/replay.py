"""Recorded routing in place of the router's, so that speed at real locality can be measured on random weights.

picks[m] = trace[(position[m] + offset) % n_tokens, layer],  weights[m] = 1 / k
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.rows import ROW_TABLES
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.rows import Rows


@jit(do_not_specialize=["n_tokens", "layer"], do_not_specialize_on_alignment=ROW_TABLES[:2])
def replay_kernel(
    trace: tl.tensor,  # int16 [n_tokens, n_layers, K]
    positions: tl.tensor,  # int32 [m]
    seqs: tl.tensor,  # int32 [m]
    offsets: tl.tensor,  # int32 [n_seqs]
    picks: tl.tensor,  # int32 [m, K]
    weights: tl.tensor,  # float32 [m, K]
    layer: tl.tensor,
    n_layers: tl.tensor,
    n_tokens: tl.tensor,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    j = tl.arange(0, K_PAD)
    token = (tl.load(positions + row) + tl.load(offsets + tl.load(seqs + row))) % n_tokens
    at = trace + (token.to(tl.int64) * n_layers + layer) * K + j
    tl.store(picks + row * K + j, tl.load(at, mask=j < K, other=0).to(tl.int32), mask=j < K)
    tl.store(weights + row * K + j, tl.zeros([K_PAD], tl.float32) + 1.0 / K, mask=j < K)


def replay(
    trace: torch.Tensor, rows: Rows, offsets: torch.Tensor, layer: int, picks: torch.Tensor, weights: torch.Tensor
) -> None:
    """Write picks int32 and weights float32 [m, k] from a trace int16 [tokens, layers, k]; `offsets` int32 say where each sequence begins in it."""
    m, k = picks.shape
    n_tokens, n_layers, trace_k = trace.shape
    assert trace_k == k
    replay_kernel[(m,)](
        trace,
        rows.positions,
        rows.seqs,
        offsets,
        picks,
        weights,
        layer,
        n_layers,
        n_tokens,
        K=k,
        K_PAD=1 << (k - 1).bit_length(),
        num_warps=1,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"trace": "*i16", "weights": "*fp32"} | dict.fromkeys(("positions", "seqs", "offsets", "picks"), "*i32")
    types |= dict.fromkeys(("layer", "n_layers", "n_tokens"), "i32")
    return [CompileCase("replay", replay_kernel, types, {"K": 6, "K_PAD": 8}, num_warps=1)]
