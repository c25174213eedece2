from __future__ import annotations

import pytest

from hotset.engine.nvml import GpuInfo, GpuState, Link, gpus, state


@pytest.mark.parametrize(
    ("link", "best_link", "expected"),
    [
        (Link(1, 16), Link(5, 16), Link(5, 16).rate),  # idle
        (Link(4, 8), Link(4, 16), Link(4, 8).rate),  # a slot with half of the lanes
        (None, Link(4, 16), None),
        (Link(4, 16), None, None),
        (Link(9, 16), Link(9, 16), None),  # a generation that is not known
    ],
)
def test_the_bus_of_a_gpu_that_is_awake(link, best_link, expected):
    assert GpuState(link, best_link, None, None, None, None).bus_rate == expected


class FakeNvml:
    """Two cards, of which the second knows nothing of its link."""

    def __init__(self, refuse: str = "") -> None:
        self.refuse = refuse
        self.open = 0

    def __getattr__(self, name):
        if name == self.refuse:
            return lambda *_: 3
        return lambda *args: self.answer(name, *args)

    def answer(self, name, *args):  # noqa: C901 - one branch for each thing asked
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
        elif "Clock" in name:
            args[2]._obj.value = (1980 if "Max" in name else 1500) + args[1]
        elif "Power" in name:
            args[1]._obj.value = 310_500 if "Usage" in name else 700_000
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


def test_what_a_card_does_now_is_told_by_its_address():
    library = FakeNvml()
    found = state("0000:01:00", library)
    assert found == GpuState(Link(4, 8), Link(4, 16), 1501, 1981, 310.5, 700.0)
    assert str(found).startswith("PCIe 4 x8, though card and slot allow PCIe 4 x16: check the slot")
    assert str(found).endswith(", 1,501 of 1,981 MHz, 310 of 700 W")
    assert found.facts()["gpu_link"] == "PCIe 4 x8"
    assert state("0000:09:00", library) is None
    assert library.open == 0


def test_what_the_driver_does_not_say_is_not_known():
    found = state("0000:02:00", FakeNvml("nvmlDeviceGetPowerUsage"))
    assert (found.link, found.watts, found.facts()["gpu_link"]) == (None, None, None)
    assert str(found) == "a link that is not known, 1,501 of 1,981 MHz"
