"""Run mixture-of-experts language models that do not fit in VRAM: experts in host memory, the hot ones cached on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotset.config import SamplingParams
from hotset.errors import (
    ContextError,
    DeviceError,
    FileError,
    HotsetError,
    InputError,
    PlacementError,
    UnsupportedError,
)
from hotset.version import __version__

if TYPE_CHECKING:
    from hotset.engine.engine import Engine, Generation, Piece, Stream
    from hotset.engine.loading import load
    from hotset.engine.stats import Stats

__all__ = [
    "ContextError",
    "DeviceError",
    "Engine",
    "FileError",
    "Generation",
    "HotsetError",
    "InputError",
    "Piece",
    "PlacementError",
    "SamplingParams",
    "Stats",
    "Stream",
    "UnsupportedError",
    "__version__",
    "load",
]

_LAZY = {
    "load": "loading",
    "Engine": "engine",
    "Generation": "engine",
    "Piece": "engine",
    "Stream": "engine",
    "Stats": "stats",
}


def __getattr__(name: str) -> Any:  # the engine brings Numba: it is imported when it is asked for
    if name not in _LAZY:
        raise AttributeError(f"module 'hotset' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"hotset.engine.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
