"""Picks from CSV: one line per pick, with the columns layer, token and expert, and request where there are several answers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

HINT = "give CSV with a first line naming the columns layer, token and expert (request too for several answers), one line per pick"
NEEDED = ("layer", "token", "expert")


def read_picks(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Picks `experts` [tokens, layers, k] and `offsets` of answers, ordered by request, token and layer number; picks keep their order in the file."""

    def problem(text: str) -> FileError:
        return FileError(path, "trace", text, hint=HINT)

    try:
        with path.open(encoding="utf-8") as file:
            names = [name.strip().strip('"').lower() for name in file.readline().split(",")]
            missing = [name for name in NEEDED if name not in names]
            if missing:
                raise problem(f"its first line does not name the column {missing[0]}")
            wanted = [n for n in ("request", *NEEDED) if n in names]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # an empty file is refused below
                table = np.loadtxt(
                    file, np.int64, delimiter=",", usecols=[names.index(n) for n in wanted], ndmin=2, comments=None
                )
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        if isinstance(error, FileError):
            raise
        raise problem(f"cannot be read ({error})") from error
    if not len(table):
        raise problem("has no picks")
    columns = dict(zip(wanted, table.T, strict=True))
    request = columns.get("request", np.zeros(len(table), np.int64))
    return _arrange(request, *(columns[name] for name in NEEDED), problem=problem)


def _arrange(
    request: NDArray[np.int64], layer: NDArray[np.int64], token: NDArray[np.int64], expert: NDArray[np.int64], *, problem: Any
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    order = np.lexsort((layer, token, request))  # stable: picks of a token stay in the order of the file
    request, layer, token, expert = (column[order] for column in (request, layer, token, expert))
    border = np.flatnonzero((np.diff(request) != 0) | (np.diff(token) != 0)) + 1
    first = np.concatenate([[0], border])
    layers = np.unique(layer)
    n_tokens = len(first)
    k, rest = divmod(len(expert), n_tokens * len(layers))
    if rest or k == 0 or not np.array_equal(layer, np.tile(np.repeat(layers, k), n_tokens)):
        raise problem("not every token has the same number of picks in every layer")
    answers = np.flatnonzero(np.diff(request[first]) != 0) + 1
    offsets = np.concatenate([[0], answers, [n_tokens]])
    return expert.reshape(n_tokens, len(layers), k), offsets
