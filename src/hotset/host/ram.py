"""How much host memory this process may still take."""

from __future__ import annotations

from pathlib import Path

from hotset.host.cgroup import memberships, read, with_ancestors


def available_bytes(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """MemAvailable, or what the cgroup leaves where that is less; a very large number where neither is known."""
    free = [_mem_available(proc)]
    for controllers, path in memberships(proc):
        if not controllers:
            free.append(_room(sys / "fs/cgroup", path, "memory.max", "memory.current", "file"))
        elif "memory" in controllers:
            free.append(
                _room(sys / "fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
            )
    return max(0, min(free))


_UNKNOWN = 1 << 62


def _mem_available(proc: Path) -> int:
    for line in read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNKNOWN


def _room(root: Path, path: str, limit_name: str, usage_name: str, cache_name: str) -> int:
    """Least room over the cgroup and its ancestors; pages of files that the group holds can be had back, so they count as free."""
    room = _UNKNOWN
    for f in with_ancestors(root, path):
        limit, usage = read(f / limit_name), read(f / usage_name)
        if limit.isdigit() and usage.isdigit() and int(limit) < _UNKNOWN:
            room = min(room, int(limit) - int(usage) + _statistic(f / "memory.stat", cache_name))
    return room


def _statistic(path: Path, name: str) -> int:
    for line in read(path).splitlines():
        if line.split()[:1] == [name]:
            return int(line.split()[1])
    return 0
