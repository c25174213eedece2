"""How much memory is left: /proc/meminfo and control groups of our own making."""

from __future__ import annotations

import pytest

from hotset.host.ram import available_bytes

MIB = 1 << 20


class Machine:
    def __init__(self, folder) -> None:
        self.folder = folder

    def write(self, path: str, text: object) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def group(self, path: str, limit: object, used: int, files: int = 0, *, v1: bool = False) -> None:
        names = ("limit_in_bytes", "usage_in_bytes", "total_cache") if v1 else ("max", "current", "file")
        root = "sys/fs/cgroup/memory" if v1 else "sys/fs/cgroup"
        self.write(f"{root}{path}/memory.{names[0]}", limit)
        self.write(f"{root}{path}/memory.{names[1]}", used)
        self.write(f"{root}{path}/memory.stat", f"anon 1\n{names[2]} {files}\nother 5")

    @property
    def available(self) -> int:
        return available_bytes(self.folder / "proc", self.folder / "sys")


@pytest.fixture
def machine(tmp_path) -> Machine:
    machine = Machine(tmp_path)
    machine.write("proc/meminfo", f"MemTotal: {9000 * 1024} kB\nMemFree: 1 kB\nMemAvailable:   {8000 * 1024} kB")
    return machine


def test_without_a_group_it_is_what_the_kernel_calls_available(machine):
    assert machine.available == 8000 * MIB


def test_a_v2_group_bounds_it_and_gives_back_its_file_pages(machine):
    machine.write("proc/self/cgroup", "0::/job")
    machine.group("/job", 1000 * MIB, 700 * MIB, files=200 * MIB)
    assert machine.available == 500 * MIB


@pytest.mark.parametrize("outer", ["/a", ""])
def test_an_outer_group_counts_as_well(machine, outer):
    machine.write("proc/self/cgroup", "0::/a/b")
    machine.group("/a/b", "max", 10 * MIB)
    machine.group(outer, 100 * MIB, 30 * MIB)
    assert machine.available == 70 * MIB


def test_the_tightest_group_bounds_it(machine):
    machine.write("proc/self/cgroup", "0::/a/b")
    machine.group("/a/b", 80 * MIB, 30 * MIB)
    machine.group("/a", 100 * MIB, 30 * MIB)
    assert machine.available == 50 * MIB


def test_inside_a_container_the_root_holds_the_limit(machine):
    machine.write("proc/self/cgroup", "0::/docker/0123")
    machine.group("", 100 * MIB, 30 * MIB)
    assert machine.available == 70 * MIB


@pytest.mark.parametrize("path", ["/job", ""], ids=["own folder", "container"])
def test_a_v1_group_bounds_it(machine, path):
    machine.write("proc/self/cgroup", "9:memory:/job\n4:cpu,cpuacct:/job")
    machine.group(path, 1000 * MIB, 400 * MIB, files=100 * MIB, v1=True)
    assert machine.available == 700 * MIB


def test_no_limit_in_v1_is_a_very_large_number(machine):
    machine.write("proc/self/cgroup", "9:memory:/")
    machine.group("", 9223372036854771712, 400 * MIB, v1=True)
    assert machine.available == 8000 * MIB


def test_a_group_over_its_limit_leaves_nothing(machine):
    machine.group("", 100 * MIB, 130 * MIB)
    assert machine.available == 0


def test_where_nothing_is_known_it_is_very_large(tmp_path):
    assert available_bytes(tmp_path / "proc", tmp_path / "sys") > 1 << 50
