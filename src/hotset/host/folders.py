"""Where hotset keeps what it computed or measured once, and how a file there is replaced."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """Where hotset keeps what it computed once: $HOTSET_CACHE, else $XDG_CACHE_HOME/hotset, else ~/.cache/hotset."""
    if own := os.environ.get("HOTSET_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotset"


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` at `path`, making its folder; whoever reads, also after a crash, sees the old file or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
