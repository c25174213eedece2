"""Finds the files of a split model: the keys of the given file say how many there are, its name where they lie."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hotset.errors import FileError
from hotset.gguf.part import Part, open_part
from hotset.gguf.tensors import check_not_joined

if TYPE_CHECKING:
    from pathlib import Path

PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
MAX_PARTS = (1 << 16) - 1


def part_name(stem: str, index: int, count: int) -> str:
    """Name part `index` (counted from 0), as llama.cpp's gguf-split writes it."""
    return f"{stem}-{index + 1:05}-of-{count:05}.gguf"


def open_parts(path: Path) -> tuple[Part, ...]:
    """Open `path` and, where its keys say that it is one part of a split, the others beside it, in order."""
    given = _open(path)
    index, count = place_in_split(given)
    if count == 1:
        return (given,)
    stem = _stem(path, index, count)
    paths = [path.with_name(part_name(stem, i, count)) for i in range(count)]
    for i, sibling in enumerate(paths):
        if not sibling.is_file():
            raise _missing(path, paths, i)
    parts = tuple(given if i == index else _open(sibling) for i, sibling in enumerate(paths))
    for i, part in enumerate(parts):
        check_place(part, i, count)
    check_tensor_count(parts)
    return parts


def _open(path: Path) -> Part:
    part = open_part(path)
    check_not_joined(part)
    return part


def place_in_split(part: Part) -> tuple[int, int]:
    """Which part this is, counted from 0, and how many there are."""
    metadata = part.header.metadata
    count = max(1, metadata.int("split.count", 1, low=0, high=MAX_PARTS))
    return metadata.int("split.no", 0, low=0, high=count - 1), count


def _stem(path: Path, index: int, count: int) -> str:
    """Return the name without its number; the number must be the one that the file's keys give."""
    match = PART_NAME.fullmatch(path.name)
    stem = match["stem"] if match else path.stem
    expected = part_name(stem, index, count)
    if path.name != expected:
        problem = f"says that this is part {index + 1} of {count}, but the name is {path.name}, not {expected}"
        hint = f"give it its name back ({expected}) beside the other parts"
        raise FileError(path, "split.no", problem, value=index, hint=hint)
    return stem


def _missing(given: Path, paths: list[Path], index: int) -> FileError:
    found = ", ".join(_part_names_beside(given)[:8])
    return FileError(
        given,
        f"part {index + 1} of {len(paths)}",
        f"is missing: expected {paths[index].name} in the same folder, found {found}",
        value=paths[index].name,
        hint="download the missing part, or rename it to what is expected",
    )


def _part_names_beside(given: Path) -> list[str]:
    try:
        return sorted(path.name for path in given.parent.iterdir() if PART_NAME.fullmatch(path.name))
    except OSError:  # a folder that may be entered but not listed
        return [given.name]


def check_place(part: Part, index: int, count: int) -> None:
    """FileError where a part's keys say that it is another one."""
    found = place_in_split(part)
    if found != (index, count):
        raise FileError(
            part.path,
            "split.no",
            f"says part {found[0] + 1} of {found[1]}, but the name says part {index + 1} of {count}",
            value=found[0],
            hint="give the parts their names back, or download them again",
        )


def check_tensor_count(parts: tuple[Part, ...]) -> None:
    """FileError where the parts do not hold as many tensors as they say."""
    found = sum(len(part.header.tensors) for part in parts)
    for part in parts:
        expected = part.header.metadata.int("split.tensors.count", found)
        if expected != found:
            raise FileError(
                part.path,
                "split.tensors.count",
                f"is {expected:,}, but the {len(parts)} parts hold {found:,} tensors",
                value=expected,
                hint="the parts are of different models or damaged: download them again",
            )
