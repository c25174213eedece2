"""Files that the kernel writes about this process: reading them, and the cgroup folders whose limits hold for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read(path: Path) -> str:
    """The text of a file without its line end; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def memberships(proc: Path) -> Iterator[tuple[list[str], str]]:
    """Each hierarchy of this process: its controllers (none for cgroup v2) and the path in it; the root of v2 where nothing is known."""
    for line in read(proc / "self/cgroup").splitlines() or ["0::/"]:
        number, controllers, path = line.split(":", 2)
        yield ([] if number == "0" and not controllers else controllers.split(",")), path


def with_ancestors(root: Path, path: str) -> list[Path]:
    """The group's folder and those above it; inside a container, where the path does not exist, the root itself holds the limit."""
    folder = root / path.lstrip("/")
    return [f for f in (folder, *folder.parents) if f == root or root in f.parents] if folder.is_dir() else [root]
