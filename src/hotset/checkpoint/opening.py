"""Opens a model, whichever form its files have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.gguf import open_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from hotset.checkpoint.file import ModelFile


def open_model(path: Path) -> ModelFile:
    """Open a GGUF file (any part of a split one) or a checkpoint's folder."""
    if not is_checkpoint(path):
        return open_gguf(path)
    from hotset.checkpoint.file import open_checkpoint  # needs torch

    return open_checkpoint(path)


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a folder of a Hugging Face checkpoint."""
    return path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))
