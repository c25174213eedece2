"""All experts of a model in host memory: one contiguous span per (layer, expert), filled once, then read only."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from hotset.errors import DeviceError, PlacementError
from hotset.host.ram import available_bytes
from hotset.host.rearrange import rearrange
from hotset.quant.layout import Bytes, SpanLayout

GIB = 1 << 30
# Registered in pieces, so that a refusal says how far it got; 256 MB cost 30 ms to register.
LOCK_CHUNK = 256 << 20
_MARGIN = 512 << 20


class ExpertBank:
    """Spans of all layers; expert e of layer l begins at address base[l] + e * span_bytes[l]."""

    def __init__(self, spans: tuple[SpanLayout, ...], n_experts: int) -> None:
        self.spans = spans
        self.n_experts = n_experts
        self.span_bytes = tuple(s.n_bytes for s in spans)
        self.n_bytes = sum(self.span_bytes) * n_experts
        self._check_room()
        self._map = mmap.mmap(-1, max(self.n_bytes, 1))
        if hasattr(mmap, "MADV_HUGEPAGE"):  # fewer page-table walks while streaming, and faster page-locking
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.data: Bytes = np.frombuffer(self._map, np.uint8)
        self._locked: list[int] = []
        self._driver: Any = None

    def _check_room(self) -> None:
        room = available_bytes()
        if self.n_bytes + _MARGIN > room:
            raise PlacementError(
                f"the experts need {self.n_bytes / GIB:.1f} GiB of host memory and {room / GIB:.1f} GiB are available; "
                "close other programs, choose a smaller quantisation, or use a machine with more memory"
            )

    @cached_property
    def base(self) -> tuple[int, ...]:
        """Address of each layer's first span."""
        starts = np.cumsum([0, *(b * self.n_experts for b in self.span_bytes)])[:-1]
        return tuple(self.data.ctypes.data + int(s) for s in starts)

    def fill(self, layer: int, role: str, blocks: Bytes) -> None:
        """GGUF bytes of one role's experts, uint8 [n_experts * rows * row_bytes], into the layer's spans."""
        span = self.spans[layer]
        rearrange(
            span.matrix(role),
            blocks,
            self.base[layer] + span.start(role),
            n_items=self.n_experts,
            target_stride=span.n_bytes,
        )

    def span(self, layer: int, expert: int) -> Bytes:
        """The bytes of one expert, uint8 [span_bytes]."""
        start = self.base[layer] - self.data.ctypes.data + expert * self.span_bytes[layer]
        return self.data[start : start + self.span_bytes[layer]]

    def page_lock(self, runtime: Any, progress: Callable[[int], None] = lambda _: None) -> None:
        """Page-lock the bank for reads by the GPU; `runtime` is torch.cuda.cudart(). DeviceError says how much could be locked; `progress` is told how much is."""
        self._driver = runtime
        for start, size in self._chunks():
            if int(runtime.cudaHostRegister(start, size, 0)):
                locked = LOCK_CHUNK * len(self._locked)
                self.release()
                raise DeviceError(
                    f"page-locking the experts stopped at {locked / GIB:.1f} of {self.n_bytes / GIB:.1f} GiB; "
                    "raise the limit (ulimit -l, or memory given to the virtual machine) or run with --device cpu"
                )
            self._locked.append(start)
            progress(start + size - self.data.ctypes.data)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        first = self.data.ctypes.data
        for start in range(0, self.n_bytes, LOCK_CHUNK):
            yield first + start, min(LOCK_CHUNK, self.n_bytes - start)

    def release(self) -> None:
        """Unlock what was locked; the memory goes with the object."""
        while self._locked:
            self._driver.cudaHostUnregister(self._locked.pop())

    def __del__(self) -> None:
        if getattr(self, "_locked", None):
            self.release()


def device_address(host: int, driver: ctypes.CDLL) -> int:
    """The address at which the GPU sees page-locked host memory (the same one on most systems); `driver` is libcuda."""
    out = ctypes.c_uint64()
    if driver.cuMemHostGetDevicePointer_v2(ctypes.byref(out), ctypes.c_void_p(host), 0):
        raise DeviceError("the GPU cannot read page-locked host memory here; run with --device cpu")
    return out.value
