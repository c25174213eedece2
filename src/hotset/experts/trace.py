"""Recorded picks: which experts every token of some answers used in every layer."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import FileError, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Whatever NumPy, zipfile and zlib raise on files that are cut off, damaged or something else.
UNREADABLE = (
    AttributeError,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Trace:
    """Picks `experts` [tokens, layers, k] of answers; answer i is tokens offsets[i] to offsets[i + 1]."""

    experts: NDArray[Any]
    offsets: NDArray[Any]
    n_experts: int

    def __post_init__(self) -> None:
        problem = _problem(self.experts, self.offsets, self.n_experts)
        if problem:
            raise InputError(problem)

    @staticmethod
    def read(path: Path) -> Trace:
        """Read a .npz file with `experts`, `offsets` and `n_experts`."""
        hint = "give a .npz trace of recorded picks with experts [tokens, layers, k], offsets and n_experts"
        try:
            with np.load(path, allow_pickle=False) as file:
                experts, offsets, n_experts = (file[name] for name in ("experts", "offsets", "n_experts"))
            return Trace(experts, offsets, int(n_experts.item()))
        except FileNotFoundError:
            raise FileError(path, "trace", "no such file", hint=hint) from None
        except InputError as error:
            raise FileError(path, "trace", str(error), hint=hint) from error
        except UNREADABLE as error:
            raise FileError(path, "trace", f"cannot be read ({error})", hint=hint) from error

    @property
    def n_tokens(self) -> int:
        return int(self.experts.shape[0])

    @property
    def n_layers(self) -> int:
        return int(self.experts.shape[1])

    @property
    def k(self) -> int:
        return int(self.experts.shape[2])

    def first(self, n_tokens: int) -> Trace:
        """Keep the first tokens; the last answer may be cut."""
        n = min(n_tokens, self.n_tokens)
        return Trace(self.experts[:n], np.append(self.offsets[self.offsets < n], n), self.n_experts)


def _problem(experts: NDArray[Any], offsets: NDArray[Any], n_experts: int) -> str | None:
    if experts.ndim != 3 or experts.dtype.kind not in "iu":
        return f"experts must be whole numbers [tokens, layers, k], not {experts.dtype} {experts.shape}"
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.size < 1:
        return f"offsets must be a list of whole numbers, not {offsets.dtype} {offsets.shape}"
    steps = offsets.astype(np.int64)
    if steps[0] != 0 or steps[-1] != len(experts) or np.any(np.diff(steps) < 0):
        return f"offsets must rise from 0 to the number of tokens, {len(experts)}"
    if experts.size and not 0 <= int(experts.min()) <= int(experts.max()) < n_experts:
        return f"experts go from {experts.min()} to {experts.max()}, but n_experts is {n_experts}"
    ordered = np.sort(experts, axis=-1)
    if np.any(ordered[..., 1:] == ordered[..., :-1]):
        return "a token picks the same expert twice in a layer"
    return None
