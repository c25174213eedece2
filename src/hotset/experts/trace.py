"""Recorded picks: which experts every token of some answers used in every layer; read from a trace file, .npz or CSV."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import FileError, InputError
from hotset.experts.trace_csv import read_picks
from hotset.experts.trace_file import MAGIC, MAX_EXPERTS, Phase, RecordedRun
from hotset.experts.trace_reader import read_run

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

HINT = "give a trace file of `hotset trace`, a .npz file, or CSV"
NPZ_HINT = "give a .npz trace of recorded picks with experts [tokens, layers, k], offsets and n_experts"


@dataclass(frozen=True)
class Trace:
    """Picks `experts` [tokens, layers, k] of answers; answer i is tokens offsets[i] to offsets[i + 1].

    `span_bytes` of each layer, and the `phase` that the tokens are of, where known.
    """

    experts: NDArray[Any]
    offsets: NDArray[Any]
    n_experts: int
    span_bytes: tuple[int, ...] | None = None
    phase: Phase | None = None

    def __post_init__(self) -> None:
        problem = _problem(self.experts, self.offsets, self.n_experts)
        if problem:
            raise InputError(problem)
        if self.span_bytes is not None and (len(self.span_bytes) != self.n_layers or min(self.span_bytes) <= 0):
            raise InputError(
                f"span_bytes {self.span_bytes}: give one number above 0 for each of {self.n_layers} layers"
            )

    @staticmethod
    def read(path: Path, phase: Phase | None = None, n_experts: int | None = None) -> Trace:
        """Read a trace file of `hotset trace`, a .npz file (`experts`, `offsets`, `n_experts`), or CSV.

        Of a trace file it takes a phase's tokens, by default those that were decoded, or the prompts' where none were. `n_experts` is for
        CSV, which does not say how many there are (default: up to the highest number in it).
        """
        try:
            with path.open("rb") as file:
                start = file.read(len(MAGIC))
        except FileNotFoundError:
            raise FileError(path, "trace", "no such file", hint=HINT) from None
        except OSError as error:
            raise FileError(path, "trace", f"cannot be read ({error.strerror})", hint=HINT) from error
        if not start:
            raise FileError(path, "trace", "is empty", hint=HINT)
        is_csv = start != MAGIC and path.suffix.lower() in (".csv", ".txt")
        if phase is not None and start != MAGIC:
            raise InputError(f"{path} does not tell phases apart, so none can be chosen; leave --phase out")
        if n_experts is not None and not is_csv:
            raise InputError(f"{path} says itself how many experts there are; leave --experts out")
        if start == MAGIC:
            run = read_run(path)
            if not run.complete:
                warnings.warn(f"{path}: the run was cut off after {run.n_steps:,} steps; they are read", stacklevel=2)
            return Trace.of_run(run, phase)
        return _from_csv(path, n_experts) if is_csv else _from_npz(path)

    @staticmethod
    def of_run(run: RecordedRun, phase: Phase | None = None) -> Trace:
        """The picks of a recorded run, of one phase (see `read`)."""
        if phase is None:
            phase = "decode" if len(run.rows_of("decode")) else "prompt"
        rows = run.rows_of(phase)
        answers = run.answers[rows]
        borders = np.flatnonzero(np.diff(answers.astype(np.int64))) + 1
        offsets = np.concatenate([[0], borders, [len(rows)] if len(rows) else []]).astype(np.int64)
        return Trace(run.picks[rows], offsets, max(run.header.n_experts), run.header.span_bytes, phase)

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
        return replace(self, experts=self.experts[:n], offsets=np.append(self.offsets[self.offsets < n], n))


def _from_npz(path: Path) -> Trace:
    try:
        with np.load(path, allow_pickle=False) as file:
            experts, offsets, n_experts = (file[name] for name in ("experts", "offsets", "n_experts"))
        return Trace(experts, offsets, int(n_experts.item()))
    except InputError as error:
        raise FileError(path, "trace", str(error), hint=NPZ_HINT) from error
    except UNREADABLE as error:
        raise FileError(path, "trace", f"cannot be read ({error})", hint=NPZ_HINT) from error


def _from_csv(path: Path, n_experts: int | None) -> Trace:
    experts, offsets = read_picks(path)
    highest = int(experts.max())
    if n_experts is not None and not highest < n_experts <= MAX_EXPERTS:
        raise InputError(
            f"--experts {n_experts}: the highest number in {path} is {highest:,}; give {highest + 1:,} to {MAX_EXPERTS:,}"
        )
    try:
        return Trace(experts, offsets, highest + 1 if n_experts is None else n_experts)
    except InputError as error:
        raise FileError(path, "trace", str(error), hint="mend the file") from error


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
    if not 1 <= n_experts <= MAX_EXPERTS:
        return f"a layer has {n_experts:,} experts; 1 to {MAX_EXPERTS:,} are possible"
    ordered = np.sort(experts, axis=-1)
    if np.any(ordered[..., 1:] == ordered[..., :-1]):
        return "a token picks the same expert twice in a layer"
    return None
