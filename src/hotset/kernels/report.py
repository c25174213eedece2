"""Tell the host what a step drew, without making it wait: a ring in page-locked memory that the GPU writes.

ring[count % len(ring), m] = (token of row m, state of its sequence);  count += 1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.rows import Rows


@jit
def report_kernel(
    tokens: tl.tensor,  # int32 [M]
    seqs: tl.tensor,  # int32 [M]
    done: tl.tensor,  # int32 [n_seqs]
    count: tl.tensor,  # int32 [1]
    ring: tl.tensor,  # int32 [RING, M, 2]
    M: tl.constexpr,
    M_PAD: tl.constexpr,
    RING: tl.constexpr,
) -> None:
    r = tl.arange(0, M_PAD)
    n = tl.load(count)
    seq = tl.load(seqs + r, mask=r < M, other=0)
    at = ring + (n % RING) * (2 * M) + 2 * r
    tl.store(at, tl.load(tokens + r, mask=r < M, other=0), mask=r < M)
    tl.store(at + 1, tl.load(done + seq, mask=r < M, other=0), mask=r < M)
    tl.debug_barrier()
    tl.store(count, n + 1)


def report(rows: Rows, done: torch.Tensor, count: torch.Tensor, ring: torch.Tensor) -> None:
    """Write the rows' tokens and states into the next entry of `ring` int32 [n, m, 2]."""
    n, m = ring.shape[:2]
    assert m == len(rows)
    report_kernel[(1,)](
        rows.tokens, rows.seqs, done, count, ring, M=m, M_PAD=1 << (m - 1).bit_length(), RING=n, num_warps=1
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("tokens", "seqs", "done", "count", "ring"), "*i32")
    return [CompileCase("report", report_kernel, types, {"M": 3, "M_PAD": 4, "RING": 16}, num_warps=1)]
