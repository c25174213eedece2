"""The GPU memory that a run takes at its peak."""

from __future__ import annotations

import gc

import torch


class VramPeak:
    """Highest use of GPU memory since `begin`, without `apart` bytes that belong to others; `context` bytes are the driver's own."""

    def __init__(self, context: int, apart: int) -> None:
        self._more = context - apart

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> int:
        """Bytes; what the allocator holds in reserve counts."""
        return torch.cuda.max_memory_reserved() + self._more


def release() -> None:
    """Give the driver back what nothing uses any more."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
