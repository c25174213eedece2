"""The architectures that hotset runs, as lists for people."""

from __future__ import annotations

from hotset.model.config import ARCHITECTURES

CPU, BOTH = "CPU", "CPU, GPU"


def architecture_rows() -> list[tuple[str, str, str]]:
    """Name, models that use it, and where it runs, by name."""
    return [(a.name, a.models, BOTH if a.on_gpu else CPU) for _, a in sorted(ARCHITECTURES.items())]
