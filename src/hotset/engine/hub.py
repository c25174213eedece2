"""Models of Hugging Face by name: `user/repo[:quant]` becomes files in the cache that all of its libraries share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from hotset.engine.hub_choice import HubName, chosen
from hotset.errors import FileError
from hotset.gguf.remote import RemoteFile

STAGE = "download"

Progress = Callable[[str, int, int], None]


def fetch(name: HubName, progress: Progress) -> Path:
    """Return the model's file (the first part of a split one) or the folder of its checkpoint, fetched where the cache lacks it.

    Where Hugging Face cannot be reached the cache alone decides. `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE` hold as in
    `huggingface_hub`. `progress` is called with "download", bytes fetched and bytes in all. Raises FileError.
    """
    sizes, problem = listed(name)
    if sizes is None:
        return from_cache(name, problem)
    files = chosen(name, [*sizes])
    missing = [file for file in files if file not in sizes]
    if missing:
        raise FileError(str(name), missing[0], "is missing among the parts of the model", hint="name another quant")
    return located(download(name, {file: sizes[file] for file in files}, progress))


def located(first: Path) -> Path:
    return first if first.suffix == ".gguf" else first.parent


def listed(name: HubName) -> tuple[dict[str, int] | None, str]:
    """Return the repository's files with their sizes, or None and why Hugging Face cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        info = HfApi(endpoint=endpoint()).model_info(name.repo, files_metadata=True, timeout=30)
    except GatedRepoError as error:
        hint = "accept its terms on its page, and set HF_TOKEN to a token of that account"
        raise FileError(str(name), "access", "Hugging Face keeps it behind a gate", hint=hint) from error
    except RepositoryNotFoundError as error:
        problem = "Hugging Face has no such model, or it is private"
        raise FileError(str(name), "model", problem, hint="check the name; for a private one set HF_TOKEN") from error
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise FileError(
                str(name), "model", f"Hugging Face refuses it: {one_line(error)}", hint="check HF_TOKEN"
            ) from error
        return None, one_line(error)
    except Exception as error:  # noqa: BLE001 - no network, a proxy, offline mode: the class changes with the HTTP library
        return None, one_line(error)
    return {file.rfilename: file.size or 0 for file in info.siblings or []}, ""


def download(name: HubName, sizes: Mapping[str, int], progress: Progress) -> Path:
    """Fetch what the cache lacks of the files -> the first one's path."""
    from huggingface_hub import hf_hub_download

    total, done, paths = sum(sizes.values()), 0, []
    for file, size in sizes.items():
        meter = transfer_meter(progress, done, total)
        try:
            paths.append(Path(hf_hub_download(name.repo, file, endpoint=endpoint(), tqdm_class=meter)))
        except Exception as error:
            raise FileError(
                str(name),
                file,
                f"cannot be fetched: {one_line(error)}",
                hint="run it again: it goes on where it stopped",
            ) from error
        done += size
    if len({path.parent for path in paths}) > 1:
        raise FileError(str(name), "model", "the repository changed while it was fetched", hint="run it again")
    return paths[0]


def from_cache(name: HubName, problem: str) -> Path:
    """Return the model's file as it was fetched last; FileError with `problem`, why nothing can be fetched, where the cache lacks it."""
    folder = snapshot(name.repo)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) if folder else []
    try:
        wanted = chosen(name, files)
    except FileError:
        wanted = []
    if folder is None or not wanted or not set(wanted) <= set(files):
        lack = "it is not in the cache" if not files else f"the cache holds only {', '.join(files)}"
        hint = "connect, or give the path of a .gguf file"
        raise FileError(str(name), "model", f"Hugging Face cannot be reached ({problem}), and {lack}", hint=hint)
    return located(folder / wanted[0])


def remote_files(name: HubName, sizes: Mapping[str, int]) -> list[RemoteFile]:
    """Return the model's GGUF file, or the parts of a split one, as they can be read without being fetched; `sizes` is what `listed` gave."""
    from huggingface_hub import get_token, hf_hub_url

    files = chosen(name, [*sizes])
    if not files[0].endswith(".gguf"):
        hint = "name a repository with GGUF files, or fetch it with `hotset inspect` first and plan from its folder"
        raise FileError(str(name), "model", "it is a checkpoint, whose headers are not read from afar", hint=hint)
    token = get_token()
    secret = {"Authorization": f"Bearer {token}"} if token else {}
    return [
        RemoteFile(hf_hub_url(name.repo, file, endpoint=endpoint()), Path(name.repo) / file, secret) for file in files
    ]


def snapshot(repo: str) -> Path | None:
    """The cache's folder of the repository's files as they were seen last."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    files = folder / "snapshots" / commit
    return files if files.is_dir() else None


def endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def transfer_meter(progress: Progress, before: int, total: int) -> Any:
    """A class in the place of tqdm's bar; `before` bytes came with the files before this one."""

    class Meter:
        def __init__(self, *_: object, initial: int = 0, total: int | None = None, **__: object) -> None:
            self.n, self.total = initial, total
            self.update(0)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            progress(STAGE, min(before + self.n, all_bytes), all_bytes)

        def ignored(self, *_: object, **__: object) -> None:
            pass

        # Bytes on the wire are counted apart from bytes on the disk, and a bar has words.
        update_transfer = set_postfix_str = set_transfer_postfix_str = set_description = refresh = close = ignored

    all_bytes = max(total, before)
    return Meter
