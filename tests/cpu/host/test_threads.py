"""How many threads: fake topologies and control groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hotset.errors import InputError
from hotset.host.threads import available_cores, checked_threads, cpu_list


class Machine:
    """A /sys and a /proc of our own making."""

    def __init__(self, folder) -> None:
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.cpus: set[int] = set()

    def write(self, path: str, text: str) -> None:
        file = self.sys.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def core(self, *cpus: int) -> None:
        for cpu in cpus:
            self.cpus.add(cpu)
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", ",".join(map(str, cpus)))

    def n(self, allowed: set[int] | None = None) -> int:
        return available_cores(self.sys, self.proc, self.cpus if allowed is None else allowed)


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def servers(machine) -> Machine:
    """Two sockets of 36 cores; the second threads are CPUs 72 to 143."""
    for core in range(72):
        machine.core(core, core + 72)
    return machine


@pytest.fixture
def hybrid(machine) -> Machine:
    """8 performance cores of two threads (CPUs 0-15), 16 efficiency cores."""
    for core in range(8):
        machine.core(2 * core, 2 * core + 1)
    for cpu in range(16, 32):
        machine.core(cpu)
    machine.write("sys/devices/cpu_core/cpus", "0-15")
    machine.write("sys/devices/cpu_atom/cpus", "16-31")
    return machine


def test_two_hyper_threads_are_one_core(servers):
    assert servers.n() == 72


def test_affinity_counts_cores_not_cpus(servers):
    assert servers.n(set(range(36)) | set(range(72, 108))) == 36
    assert servers.n({0, 1}) == 2
    assert servers.n({0, 72}) == 1
    assert servers.n({75}) == 1


def test_efficiency_cores_are_left_out_of_a_hybrid_machine(hybrid):
    assert hybrid.n() == 8
    assert hybrid.n({0, 1, 2, 16, 17}) == 2


def test_only_efficiency_cores_allowed_means_all_of_them(hybrid):
    assert hybrid.n({16, 17, 18}) == 3


def test_without_a_topology_every_cpu_is_a_core(machine):
    assert machine.n({0, 1, 2, 3}) == 4
    assert machine.n(set()) == 1


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("400000 100000", 4), ("50000 100000", 1), ("250000 100000", 2), ("max 100000", 72), ("", 72)],
)
def test_the_quota_of_a_v2_group_bounds_threads(servers, quota, expected):
    servers.write("proc/self/cgroup", "0::/user.slice/job")
    servers.write("sys/fs/cgroup/user.slice/job/cpu.max", quota)
    assert servers.n() == expected


def test_the_quota_of_an_outer_group_counts_as_well(servers):
    servers.write("proc/self/cgroup", "0::/a/b")
    servers.write("sys/fs/cgroup/a/cpu.max", "300000 100000")
    servers.write("sys/fs/cgroup/a/b/cpu.max", "800000 100000")
    assert servers.n() == 3


def test_inside_a_container_the_root_of_the_group_holds_the_quota(servers):
    servers.write("proc/self/cgroup", "0::/docker/0123")
    servers.write("sys/fs/cgroup/cpu.max", "400000 100000")
    assert servers.n() == 4


@pytest.mark.parametrize(("quota", "expected"), [("400000", 4), ("-1", 72)])
@pytest.mark.parametrize("folder", ["job/", ""], ids=["own folder", "container"])
def test_the_quota_of_a_v1_group_bounds_threads(servers, quota, expected, folder):
    servers.write("proc/self/cgroup", "11:memory:/job\n4:cpu,cpuacct:/job\n0::/")
    servers.write(f"sys/fs/cgroup/cpu/{folder}cpu.cfs_quota_us", quota)
    servers.write(f"sys/fs/cgroup/cpu/{folder}cpu.cfs_period_us", "100000")
    assert servers.n() == expected


def test_cpu_lists_are_read_as_the_kernel_writes_them():
    assert cpu_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert cpu_list("") == set()


@pytest.mark.parametrize("threads", [0, -1, 100_000, True, 1.5, "2"])
def test_threads_out_of_range_are_refused(threads):
    with pytest.raises(InputError, match=r"threads must be 1 to \d+, the CPUs that this process may use, not"):
        checked_threads(threads)


def test_the_default_is_within_the_machine():
    assert 1 <= checked_threads(None) <= (os.cpu_count() or 1)
    assert checked_threads(1) == 1


THREADS = """
import json
import numba
from hotset.errors import InputError
from hotset.host.threads import checked_threads
numba.set_num_threads(checked_threads(None))
try:
    print(json.dumps(checked_threads(2)))
except InputError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize(
    ("prefix", "environment"),
    [(["taskset", "-c", str(min(os.sched_getaffinity(0)))], {}), ([], {"NUMBA_NUM_THREADS": "1"})],
    ids=["affinity", "NUMBA_NUM_THREADS"],
)
def test_more_threads_than_can_be_started_are_refused_at_once(prefix, environment):
    command = [*prefix, sys.executable, "-c", THREADS]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == "threads must be 1 to 1, the CPUs that this process may use, not 2"
