"""The tensors of a checkpoint's .safetensors files, by name, read when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotset.errors import FileError

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """A tensor as stored: its shape and the name of its number format."""

    shape: tuple[int, ...]
    kind: str


class Shards:
    """Opens every file of a checkpoint; `stored` lists the tensors, `read` brings one in.

    Raises FileError: no file, one that the index names is missing, one is damaged, a tensor stands twice or not where the index says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = _index(folder)
        self.paths = _paths(folder, index)
        self._files: dict[str, Any] = {}
        self.stored: dict[str, Stored] = {}
        where: dict[str, str] = {}
        for path in self.paths:
            for name, entry, file in _entries(path):
                if name in self.stored:
                    raise FileError(path, name, "this tensor stands in two files of the checkpoint", value=name)
                self.stored[name], self._files[name] = entry, file
                where[name] = path.name
        if index is not None and (wrong := sorted(n for n in {*index, *where} if index.get(n) != where.get(n))):
            raise FileError(
                folder, INDEX, f"does not say where these tensors are: {', '.join(wrong[:12])}", value=wrong
            )

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor as stored."""
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.paths)


def _index(folder: Path) -> dict[str, str] | None:
    """The file of each tensor as the index has it, None where there is no index."""
    path = folder / INDEX
    if not path.exists():
        return None
    try:
        found = dict(json.loads(path.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(path, "weight_map", "cannot be read", hint="download the file again") from error
    if not all(isinstance(file, str) for file in found.values()):
        raise FileError(path, "weight_map", "names what is no file", hint="download the file again")
    return found


def _paths(folder: Path, index: dict[str, str] | None) -> tuple[Path, ...]:
    if index is None:
        found = tuple(sorted(folder.glob("*.safetensors")))
        if not found:
            raise FileError(
                folder, "model", "holds no .safetensors file", hint="give a folder with config.json and its weights"
            )
        return found
    names = sorted(set(index.values()))
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise FileError(
            folder, "model", f"files of the index are missing: {', '.join(missing)}", hint="download the rest"
        )
    return tuple(folder / name for name in names)


def _entries(path: Path) -> Iterator[tuple[str, Stored, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        file: Any = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FileError(
            path, "file", f"is no safetensors file or damaged ({error})", hint="download it again"
        ) from error
    for name in file.keys():  # noqa: SIM118 - safe_open is no dict
        part = file.get_slice(name)
        yield name, Stored(tuple(part.get_shape()), part.get_dtype()), file
