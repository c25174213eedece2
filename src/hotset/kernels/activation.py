"""Activations of a few rows, as float32 and as int8 in blocks of 32, and the kernel that quantises them.

d = max |x| / 127, q = x * (127 / max |x|) rounded half to even, h = the sums of q per 16, s = d * the sum of q, for each block of 32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

BLOCK = 32
BLOCKS_PER_PROGRAM = 16


@dataclass(frozen=True, eq=False)
class Activation:
    """Rows [m, cols]: float32, and int8 with scales where the fast mode's integer products read them (else None)."""

    f32: torch.Tensor
    q: torch.Tensor | None = None  # int8 [m, cols]
    d: torch.Tensor | None = None  # float32 [m, cols / 32]
    h: torch.Tensor | None = None  # int32 [m, cols / 16]
    s: torch.Tensor | None = None  # float32 [m, cols / 32]

    @classmethod
    def empty(cls, m: int, cols: int, device: torch.device | str, *, quantised: bool) -> Activation:
        """Allocate rows; columns off the block of 32 have no quantised form (only float formats have such matrices)."""
        import torch

        f32 = torch.empty(m, cols, device=device)
        if not quantised or cols % BLOCK:
            return cls(f32)
        n = cols // BLOCK
        return cls(
            f32,
            torch.empty(m, cols, dtype=torch.int8, device=device),
            torch.empty(m, n, device=device),
            torch.empty(m, 2 * n, dtype=torch.int32, device=device),
            torch.empty(m, n, device=device),
        )

    @property
    def shape(self) -> torch.Size:
        return self.f32.shape

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        return (self.f32, self.q, self.d, self.h, self.s)

    def rows(self, m: int) -> Activation:
        """Return a view of the first `m` rows."""
        return Activation(self.f32[:m], *(None if t is None else t[:m] for t in self.tensors[1:]))


# Any product or sum that decides a bit is rounded on its own: all kernels here run with enable_fp_fusion=False.
@jit
def store_quantised(
    x: tl.tensor,  # float32 [B, 32]
    block: tl.tensor,  # [B], which blocks of the row
    ok: tl.tensor,  # [B]
    q: tl.tensor,  # pointers to the row's first element
    d: tl.tensor,
    h: tl.tensor,
    s: tl.tensor,
) -> None:
    lane = tl.arange(0, 32)[None, :]
    largest = tl.max(tl.abs(x), 1)
    # 127 / largest overflows below 4e-37: values that small are zeros.
    inverse = tl.where(largest > 1e-30, tl.div_rn(127.0, tl.maximum(largest, 1e-30)), 0.0)
    # Adding and taking away 1.5 * 2^23 rounds half to even.
    rounded = (x * inverse[:, None] + 12582912.0) - 12582912.0
    value = rounded.to(tl.int32)
    first = tl.sum(tl.where(lane < 16, value, 0), 1)
    second = tl.sum(tl.where(lane < 16, 0, value), 1)
    # A maximum skips NaN and infinity has no quantised form: x - x is 0, or NaN that must show.
    scale = tl.div_rn(largest, 127.0) + tl.sum(x - x, 1)
    tl.store(q + block[:, None] * 32 + lane, value.to(tl.int8), mask=ok[:, None])
    tl.store(d + block, scale, mask=ok)
    tl.store(h + 2 * block, first, mask=ok)
    tl.store(h + 2 * block + 1, second, mask=ok)
    tl.store(s + block, scale * (first + second).to(tl.float32), mask=ok)


@jit
def quantise_kernel(
    x: tl.tensor,  # float32 [m, COLS]
    q: tl.tensor,  # int8 [m, COLS]
    d: tl.tensor,  # float32 [m, COLS / 32]
    h: tl.tensor,  # int32 [m, COLS / 16]
    s: tl.tensor,  # float32 [m, COLS / 32]
    COLS: tl.constexpr,
    B: tl.constexpr,
) -> None:
    m = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * B + tl.arange(0, B)
    ok = block < COLS // 32
    at = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    value = tl.load(x + m * COLS + at, mask=ok[:, None], other=0)
    store_quantised(value, block, ok, q + m * COLS, d + m * (COLS // 32), h + m * (COLS // 16), s + m * (COLS // 32))


def quantise(a: Activation) -> None:
    """Fill the quantised form of `a` from `a.f32`; nothing where it has none."""
    if a.q is None:
        return
    m, cols = a.shape
    assert a.f32.is_contiguous()
    n_programs = -(-cols // (BLOCK * BLOCKS_PER_PROGRAM))
    quantise_kernel[(m, n_programs)](*a.tensors, COLS=cols, B=BLOCKS_PER_PROGRAM, num_warps=1, enable_fp_fusion=False)


def quantised_reference(f32: torch.Tensor) -> Activation:
    """Quantise rows [m, cols] in plain PyTorch: the same bits."""
    import torch

    blocks = f32.reshape(len(f32), -1, BLOCK)
    largest = blocks.abs().amax(-1)
    inverse = torch.where(largest > 1e-30, 127 / largest, 0)
    q = torch.round(blocks * inverse[..., None]).to(torch.int8)
    d = largest / 127 + (blocks - blocks).sum(-1)
    h = q.reshape(len(f32), -1, BLOCK // 2).sum(-1, dtype=torch.int32)
    s = d * q.sum(-1).to(torch.float32)
    return Activation(f32, q.reshape(f32.shape), d, h, s)


QUANTISED_TYPES = {"q": "*i8", "d": "*fp32", "h": "*i32", "s": "*fp32"}


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"x": "*fp32", **QUANTISED_TYPES}
    return [CompileCase("quantise", quantise_kernel, types, {"COLS": 768, "B": BLOCKS_PER_PROGRAM}, num_warps=1)]
