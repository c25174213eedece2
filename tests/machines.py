"""Machines whose figures were not measured anywhere."""

from __future__ import annotations

from hotset.engine.nvml import Link
from hotset.plan.hardware import GpuFigures, Machine

GPU = GpuFigures(
    name="a card",
    capability=(8, 9),
    vram_bytes=8 << 30,
    link=Link(3, 16),
    best_link=Link(4, 16),
    pinned_copy={1 << 16: 4e9, 1 << 20: 16e9, 1 << 24: 24e9},
    zero_copy={1 << 20: 12e9},
    memory=400e9,
    launch_s=6e-6,
    graph_launch_s=1e-6,
    round_trip_s=2e-5,
    page_locked_bytes=4 << 30,
    page_lock_tried=8 << 30,
)
WITH_GPU = Machine("a processor", 8, 32 << 30, 8 << 20, {1: 10e9, 2: 20e9, 8: 50e9}, GPU, {"something": "a reason"})
WITHOUT_GPU = Machine("a processor", 2, 8 << 30, None, {1: 10e9, 2: 20e9}, missing={"GPU": "no driver"})
