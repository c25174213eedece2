"""Keys and values of a layer in device memory, and how kernels read and write them.

q8_0: x = q s for each block of 32 values of a head; s = max |x| / 127 as float16, q = x (127 / max |x|) rounded half to even
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 32


@dataclass(frozen=True)
class KVCache:
    """Keys [n_seqs, n_kv, n_ctx, head_dim] and values [n_seqs, n_kv, n_ctx, value_dim] of one layer, contiguous, float32, float16 or int8.

    Int8 ones have float16 scales [n_seqs, n_kv, n_ctx, width / 32], a plane of their own so that all loads are aligned. Float32
    stands for both or for none.
    """

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    @property
    def n_kv(self) -> int:
        return self.k.shape[1]

    @property
    def n_ctx(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.k.shape[3]

    @property
    def value_dim(self) -> int:
        return self.v.shape[3]

    @property
    def is_half(self) -> bool:
        """Whether kernels read float16 (q8_0 is made that) and not float32."""
        return self.k.dtype != torch.float32

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        return self.k, self.k_scale, self.v, self.v_scale

    def copy(self, source: int, target: int, n: int) -> None:
        """Give a sequence another's first `n` positions."""
        for part in self.tensors:
            if part is not None:
                part[target, :, :n].copy_(part[source, :, :n])

    def check(self) -> None:
        """Assert what kernels rely on."""
        assert (self.k.dtype == torch.float32) == (self.v.dtype == torch.float32)
        for cells, scale in ((self.k, self.k_scale), (self.v, self.v_scale)):
            assert cells.is_contiguous()
            assert (cells.dtype == torch.int8) == (scale is not None)
            if scale is not None:
                assert scale.dtype == torch.float16
                assert scale.is_contiguous()
                assert scale.shape == (*cells.shape[:3], cells.shape[3] // BLOCK)
                assert cells.shape[3] % BLOCK == 0


def empty_cells(
    shape: Sequence[int], kind: str, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Zeros [..., head_dim] of type "f32", "f16" or "q8_0", and the scales that q8_0 has."""
    if kind != "q8_0":
        return torch.zeros(*shape, dtype={"f32": torch.float32, "f16": torch.float16}[kind], device=device), None
    scales = torch.zeros(*shape[:-1], shape[-1] // BLOCK, dtype=torch.float16, device=device)
    return torch.zeros(*shape, dtype=torch.int8, device=device), scales


@jit
def load_cells(
    cells: tl.tensor,
    scale: tl.tensor,  # float16, or None
    head: tl.tensor,  # int64, where the head's first element lies
    t: tl.tensor,  # [T], positions
    n_keys: tl.tensor,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    MASKED: tl.constexpr,  # some t may not be below n_keys: what lies there may be anything, NaN included
) -> tl.tensor:
    """Load a head's cells [T, DIM_PAD], zeros past HEAD_DIM: as they are, or q8_0 as float16."""
    if scale is None:
        d = tl.arange(0, DIM_PAD)
        own = cells + head
        at = t.to(tl.int64)[:, None] * HEAD_DIM + d[None, :]
        if MASKED:
            value = tl.load(own + at, mask=(t < n_keys)[:, None] & (d < HEAD_DIM)[None, :], other=0)
        elif HEAD_DIM != DIM_PAD:
            value = tl.load(own + at, mask=(d < HEAD_DIM)[None, :], other=0)
        else:
            value = tl.load(own + at)
    else:
        b = tl.arange(0, DIM_PAD // 32)
        block = t.to(tl.int64)[:, None] * (HEAD_DIM // 32) + b[None, :]
        ok = (b < HEAD_DIM // 32)[None, :] & (t < n_keys)[:, None]
        at = block[:, :, None] * 32 + tl.arange(0, 32)[None, None, :]
        whole = tl.load(cells + head + at, mask=ok[:, :, None], other=0).to(tl.float32)
        factor = tl.load(scale + head // 32 + block, mask=ok, other=0).to(tl.float32)
        value = tl.reshape((whole * factor[:, :, None]).to(tl.float16), [t.shape[0], DIM_PAD])
    return value


@jit
def store_cells(
    cells: tl.tensor,
    scale: tl.tensor,  # float16, or None
    at: tl.tensor,  # int64, where the head's first element goes
    value: tl.tensor,  # float32 [DIM_PAD]
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
) -> None:
    if scale is None:
        d = tl.arange(0, DIM_PAD)
        tl.store(cells + at + d, value.to(cells.dtype.element_ty), mask=d < HEAD_DIM)
    else:
        b = tl.arange(0, DIM_PAD // 32)
        x = tl.reshape(value, [DIM_PAD // 32, 32])
        largest = tl.max(tl.abs(x), 1)
        # 127 / largest overflows below 4e-37: values that small are zeros, as their scale is.
        inverse = tl.where(largest > 1e-30, tl.div_rn(127.0, tl.maximum(largest, 1e-30)), 0.0)
        # Adding and taking away 1.5 * 2^23 rounds half to even.
        rounded = (x * inverse[:, None] + 12582912.0) - 12582912.0
        # A maximum skips NaN: x - x is 0, or NaN that must show.
        factor = tl.div_rn(largest, 127.0 + tl.zeros_like(largest)) + tl.sum(x - x, 1)
        d = b[:, None] * 32 + tl.arange(0, 32)[None, :]
        tl.store(cells + at + d, rounded.to(tl.int32).to(tl.int8), mask=d < HEAD_DIM)
        tl.store(scale + at // 32 + b, factor.to(tl.float16), mask=b < HEAD_DIM // 32)


def quantised_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise float32 [..., head_dim] in plain PyTorch: int8 of that shape and float16 [..., head_dim / 32]."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    largest = blocks.abs().amax(-1)
    inverse = torch.where(largest > 1e-30, 127 / largest, 0)
    q = torch.round(blocks * inverse[..., None]).to(torch.int8)
    return q.reshape(x.shape), (largest / 127 + (blocks - blocks).sum(-1)).half()


def floats(cells: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """What cells [..., head_dim] stand for, as kernels read them: float32, or float16."""
    if scale is None:
        return cells
    blocks = cells.reshape(*scale.shape, BLOCK).float() * scale.float()[..., None]
    return blocks.reshape(cells.shape).half()
