"""A model's header from wherever it lies: a file, the hub's cache, or, read in parts, a file on the hub or behind a URL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.checkpoint import open_model
from hotset.engine import hub
from hotset.engine.hub_choice import PREFIX, HubName, looks_like_hub_name
from hotset.engine.loading import no_progress, resolve
from hotset.gguf.remote import RemoteFile, open_remote

if TYPE_CHECKING:
    from hotset.checkpoint.file import ModelFile


@dataclass(frozen=True)
class OpenHeader:
    """An opened model of which only the header may be read; `fetched` is what was downloaded for it."""

    file: ModelFile
    fetched: int = 0


def open_header(model: str) -> OpenHeader:
    """Open what `model` names: "demo", a path, user/repo[:quant], or an http(s) URL of a .gguf file. Raises FileError."""
    if model.startswith(("http://", "https://")):
        return _remote([RemoteFile.at(model)])
    name = hub_name(model)
    if name is None:
        return OpenHeader(open_model(resolve(model, no_progress)))
    sizes, problem = hub.listed(name)
    if sizes is None:
        return OpenHeader(open_model(hub.from_cache(name, problem)))
    return _remote(hub.remote_files(name, sizes))


def hub_name(model: str) -> HubName | None:
    """The name on the hub, None for what is none, or is a path too."""
    if model.startswith(PREFIX):
        return HubName.parse(model.removeprefix(PREFIX))
    is_local = model == "demo" or Path(model).expanduser().exists()
    return HubName.parse(model) if not is_local and looks_like_hub_name(model) else None


def _remote(files: list[RemoteFile]) -> OpenHeader:
    opened, fetched = open_remote(files)
    return OpenHeader(opened, fetched)
