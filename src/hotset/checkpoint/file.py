"""A checkpoint with the face of a GGUF file: metadata, tensors by GGUF name, and their bytes, made when asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from hotset.checkpoint.config import Config, rope_tensors, shared_keys
from hotset.checkpoint.families import FAMILIES, Family
from hotset.checkpoint.recipes import make, recipes
from hotset.checkpoint.shards import Shards
from hotset.checkpoint.vocabulary import vocabulary_keys
from hotset.errors import UnsupportedError
from hotset.gguf import TYPES_BY_NAME, GGUFFile, Metadata, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt


def open_checkpoint(path: Path) -> CheckpointFile:
    """Open a folder with config.json and .safetensors files.

    Raises FileError where something is missing or damaged, UnsupportedError (naming all) for a model type or tensors not known.
    """
    config = Config.read(path / "config.json")
    kind = config.values.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        raise UnsupportedError(
            path, "model_type", f"{kind!r} is not supported as a checkpoint", value=kind,
            hint=f"take a GGUF file of the model; checkpoints of {', '.join(FAMILIES)} load",
        )  # fmt: skip
    return CheckpointFile(path, Shards(path), config, family)


class CheckpointFile:
    """See gguf.GGUFFile, whose members it has."""

    version = 3

    def __init__(self, path: Path, shards: Shards, config: Config, family: Family) -> None:
        self.path = path
        self.parts = shards.paths
        self.file_bytes = shards.n_bytes
        self._shards = shards
        self._config = config
        self._recipes = recipes(shards, family, config)
        self._made = rope_tensors(config)
        kind = TYPES_BY_NAME["F32"]
        made = {name: TensorInfo(name, x.shape, kind, x.nbytes, 0, 0) for name, x in self._made.items()}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({n: r.info for n, r in self._recipes.items()} | made)
        keys = shared_keys(config) | family.keys(config)
        self.metadata = Metadata(
            path,
            {
                "general.architecture": family.architecture,
                "general.name": model_name(path.resolve()),
                **{f"{family.architecture}.{key}": as_stored(value) for key, value in keys.items()},
                **vocabulary_keys(path, config),
            },
        )

    @property
    def header_hash(self) -> str:
        """SHA-256 of the config, and of every tensor's name and shape: tells models apart without reading their tensors."""
        digest = hashlib.sha256((self.path / "config.json").read_bytes())
        for info in self.tensors.values():
            digest.update(f"{info.name} {info.shape} {info.ggml_type}\n".encode())
        return digest.hexdigest()

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as GGUF."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    def tensor(self, name: str) -> TensorInfo:
        return self.tensors[name]

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, made anew at each call."""
        if name in self._made:
            return self._made[name].view(np.uint8)
        found: npt.NDArray[np.uint8] = make(self._recipes[name], self._shards, self._config).numpy()
        return found

    def read_ahead(self, name: str) -> None:
        """Nothing is read before it is asked for."""

    def let_go(self, name: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Files are closed with the object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def model_name(folder: Path) -> str:
    """The folder's name; of a snapshot in Hugging Face's cache (models--USER--NAME/snapshots/HASH) the model's."""
    return folder.parent.parent.name.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.name


def as_stored(value: Any) -> Any:
    """Lists as the arrays that reading a GGUF file gives."""
    return np.asarray(value) if isinstance(value, list) else value


ModelFile: TypeAlias = GGUFFile | CheckpointFile
