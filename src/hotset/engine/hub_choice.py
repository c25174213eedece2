"""Names of models of Hugging Face, and which files of a repository they mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotset.errors import FileError, InputError

NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<quant>[A-Za-z0-9][\w.-]*))?", re.ASCII)
PREFIX = "hf:"
# What is taken where no quant is named, as llama.cpp does; after these the first file.
DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
# Files beside a model that are none.
COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
CONFIG = "config.json"
BESIDE_WEIGHTS = ("model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class HubName:
    """A model's name: the repository, and the quant if one was named."""

    repo: str
    quant: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Read `user/repo` or `user/repo:quant`; InputError where it is neither."""
        match = NAME.fullmatch(text)
        if match is None or "--" in text or ".." in text:
            raise InputError(f"{text!r} is no name of a Hugging Face model; write user/repo or user/repo:QUANT")
        return cls(match["repo"], match["quant"])

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def looks_like_hub_name(text: str) -> bool:
    """Whether `text`, which is no path that exists, may be a model's name."""
    return bool(NAME.fullmatch(text)) and not text.endswith(".gguf")


def chosen(name: HubName, files: Sequence[str]) -> list[str]:
    """Return the files of the model that `name` means, in order of its parts, or of its checkpoint; FileError where there is neither."""
    models = [file for file in files if is_model(file)]
    patterns = [
        re.compile(re.escape(q) + "[.-]", re.IGNORECASE) for q in ([name.quant] if name.quant else DEFAULT_QUANTS)
    ]
    found = [file for pattern in patterns for file in models if pattern.search(file)]
    if not found and not name.quant:
        found = models
    if found:
        return parts(found[0])
    if not models:
        checkpoint = [] if name.quant else checkpoint_files(files)
        if checkpoint:
            return checkpoint
        what = "GGUF file" if name.quant else "GGUF file and no checkpoint"
        raise FileError(str(name), "model", f"the repository holds no {what}", hint="name a repository with GGUF files")
    there = ", ".join(models[:12]) + (", ..." if len(models) > 12 else "")
    raise FileError(
        str(name), "quant", f"no file has {name.quant} in its name; there are {there}", hint="name one of those quants"
    )


def is_model(file: str) -> bool:
    """Whether a file is a model, and of a split one the first part."""
    base, split = file.rpartition("/")[2], SPLIT.fullmatch(file)
    if not base.endswith(".gguf") or any(word in base for word in COMPANIONS):
        return False
    return split is None or int(split["number"]) == 1


def parts(file: str) -> list[str]:
    split = SPLIT.fullmatch(file)
    if split is None:
        return [file]
    return [f"{split['stem']}-{n:05}-of-{split['count']}.gguf" for n in range(1, int(split["count"]) + 1)]


def checkpoint_files(files: Sequence[str]) -> list[str]:
    """Return the files of a checkpoint: config.json first, its words, and its weights; nothing where it is incomplete."""
    weights = [file for file in files if "/" not in file and file.endswith(".safetensors")]
    # Mistral's repositories hold the same weights a second time under this name.
    others = [file for file in weights if not file.startswith("consolidated")]
    if CONFIG not in files or not weights:
        return []
    return [CONFIG, *(file for file in BESIDE_WEIGHTS if file in files), *(others or weights)]
