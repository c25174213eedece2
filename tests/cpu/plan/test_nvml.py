from __future__ import annotations

import pytest

from hotset.plan.nvml import GpuInfo, Link, gpus


class FakeNvml:
    """Two cards, of which the second knows nothing of its link."""

    def __init__(self, refuse: str = "") -> None:
        self.refuse = refuse
        self.open = 0

    def __getattr__(self, name):
        if name == self.refuse:
            return lambda *_: 3
        return lambda *args: self.answer(name, *args)

    def answer(self, name, *args):
        if name == "nvmlInit_v2":
            self.open += 1
        elif name == "nvmlShutdown":
            self.open -= 1
        elif name == "nvmlDeviceGetCount_v2":
            args[0]._obj.value = 2
        elif name == "nvmlDeviceGetHandleByIndex_v2":
            args[1]._obj.value = args[0] + 1
        elif name == "nvmlDeviceGetMemoryInfo":
            args[1][0] = args[0].value << 30
        elif name == "nvmlDeviceGetPciInfo_v3":
            args[1]._obj.bus = args[0].value
        elif name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
            args[1].value = f"{name[13:]} {args[0].value}".encode()
        elif "Pcie" in name:
            if args[0].value == 2:
                return 3
            args[1]._obj.value = (8 if "Curr" in name else 16) if "Width" in name else 4
        return 0


def test_cards_are_named_with_their_links():
    library = FakeNvml()
    assert gpus(library) == [
        GpuInfo("Name 1", "UUID 1", "0000:01:00", 1 << 30, Link(4, 8), Link(4, 16)),
        GpuInfo("Name 2", "UUID 2", "0000:02:00", 2 << 30, None, None),
    ]
    assert library.open == 0


@pytest.mark.parametrize("refuse", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo"])
def test_a_driver_that_refuses_shows_no_card(refuse):
    assert gpus(FakeNvml(refuse)) == []


def test_a_links_rate_follows_from_generation_and_lanes():
    assert Link(4, 16).rate == pytest.approx(31.5e9, rel=0.01)
    assert Link(99, 16).rate == 0
    assert str(Link(5, 8)) == "PCIe 5 x8"
