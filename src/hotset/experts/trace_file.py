"""The trace file: what a run picked, request by request, written as it happens and usable after a crash. docs/trace-format.md describes it byte by byte."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from hotset.errors import InputError
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

MAGIC = b"HOTTRACE"
VERSION = 1
MAX_EXPERTS = 1 << 16

PREFIX = struct.Struct("<8sII")  # magic, version, bytes of the header
FRAME = struct.Struct("<BI")  # kind, bytes of the content; a CRC-32 of both and the content follows
CHECKSUM = struct.Struct("<I")
ANSWER, STEP, COUNTS, END = range(1, 5)
STEP_HEAD = struct.Struct("<BH")  # phase, rows

Phase = Literal["prompt", "decode"]
PHASES: tuple[Phase, ...] = ("prompt", "decode")


@dataclass(frozen=True)
class TraceHeader:
    """What was recorded and on what cache: per layer bytes of a span, experts and slots; `k` picks per row, at most `max_rows` rows a step.

    `model_hash` is the model file's `header_hash`; `weights` says whether pick weights were recorded too.
    """

    model: str
    architecture: str
    model_hash: str
    made_by: str
    policy: str
    span_bytes: tuple[int, ...]
    n_experts: tuple[int, ...]
    n_slots: tuple[int, ...]
    k: int
    max_rows: int
    weights: bool

    def __post_init__(self) -> None:
        Policy.parse(self.policy)
        if not 0 < max(self.shape.n_experts, default=0) <= MAX_EXPERTS:
            raise InputError(f"a trace of {self.n_experts} experts per layer; give 1 to {MAX_EXPERTS} for some layers")

    @property
    def shape(self) -> CacheShape:
        """The cache's shape."""
        return CacheShape(self.span_bytes, self.n_experts, self.n_slots, self.k, self.max_rows)

    @property
    def n_layers(self) -> int:
        return len(self.span_bytes)

    @property
    def pick_type(self) -> np.dtype[Any]:
        return np.dtype("<u1" if max(self.n_experts) <= 256 else "<u2")

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """Read what `encoded` wrote. Raises ValueError or InputError where it is something else."""
        values = json.loads(data)
        kinds = {f.name: str(f.type) for f in fields(cls)}
        if not isinstance(values, dict) or values.keys() != kinds.keys():
            raise ValueError(f"its fields must be {', '.join(kinds)}")
        return cls(**{name: _checked(name, values[name], kind) for name, kind in kinds.items()})


def _checked(name: str, value: Any, kind: str) -> Any:
    if kind == "tuple[int, ...]":
        if isinstance(value, list) and all(type(v) is int for v in value):
            return tuple(value)
    elif type(value) is {"str": str, "int": int, "bool": bool}[kind]:
        return value
    raise ValueError(f"{name} is {value!r}")


@dataclass(frozen=True)
class PhaseCounts:
    """What the engine counted in a phase so far; per layer distinct experts found, missed, and misses that found no slot."""

    hits: tuple[int, ...]
    misses: tuple[int, ...]
    overflows: tuple[int, ...]
    bytes_fetched: int


def check_output(path: Path) -> None:
    """InputError where no trace can be written to `path`, or where it would take the place of something else."""

    def problem(text: str) -> InputError:
        return InputError(f"trace {path}: {text}; give the path of a file that can be written")

    try:
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(MAGIC)) not in (MAGIC, b""):
                    raise problem("is there and is no trace, and would be overwritten")
            return
        if path.is_dir():
            raise problem("is a folder")
        if not path.parent.is_dir():
            raise problem(f"there is no folder {path.parent}")
    except OSError as error:
        raise problem(str(error.strerror)) from error


class TraceWriter:
    """Writes a trace file; every record is one write, so that what was recorded before a crash is there."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self.header = header
        check_output(path)
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise InputError(f"trace {path}: {error.strerror}; give the path of a file that can be written") from error
        content = header.encoded()
        self._file.write(PREFIX.pack(MAGIC, VERSION, len(content)) + content + CHECKSUM.pack(zlib.crc32(content)))
        self._answer = -1

    def answer(self, n_prompt: int) -> None:
        """Begin the next answer, to a prompt of so many tokens."""
        self._answer += 1
        self._record(ANSWER, struct.pack("<II", self._answer, n_prompt))

    def step(
        self,
        phase: Phase,
        picks: NDArray[Any],
        weights: NDArray[Any] | None = None,
        answers: NDArray[Any] | None = None,
    ) -> None:
        """One request of every layer: picks [layers, rows, k] of real rows, their weights, and the answer of every row (default: the last begun)."""
        rows = picks.shape[1]
        owner = np.full(rows, self._answer) if answers is None else answers
        parts = [STEP_HEAD.pack(PHASES.index(phase), rows), owner.astype("<u4").tobytes()]
        parts.append(picks.astype(self.header.pick_type).tobytes())
        if self.header.weights:
            assert weights is not None
            parts.append(weights.astype("<f2").tobytes())
        self._record(STEP, b"".join(parts))

    def counts(self, counts: dict[Phase, PhaseCounts]) -> None:
        """The engine's counters after all steps so far."""
        self._record(COUNTS, json.dumps({phase: asdict(c) for phase, c in counts.items()}).encode())

    def close(self, *, complete: bool = True) -> None:
        """Close the file, marked as complete unless the run was cut off."""
        if complete:
            self._record(END, b"")
        self._file.close()

    def _record(self, kind: int, content: bytes) -> None:
        framed = FRAME.pack(kind, len(content)) + content
        self._file.write(framed + CHECKSUM.pack(zlib.crc32(framed)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(complete=error is None)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A trace file that was read. Steps: their phase (an index of PHASES) and where their rows begin (and the end); rows: answer, picks [rows, layers, k], weights.

    `counts` are the engine's counters after step `counted_steps`; None where the run ended before any were written. `complete` is False
    for a run that was cut off: what is there is sound.
    """

    header: TraceHeader
    phases: NDArray[np.uint8]
    starts: NDArray[np.int64]
    answers: NDArray[np.uint32]
    picks: NDArray[Any]
    weights: NDArray[np.float16] | None
    counts: dict[Phase, PhaseCounts] | None
    counted_steps: int
    complete: bool

    @property
    def n_steps(self) -> int:
        return len(self.phases)

    @property
    def begins_answer(self) -> NDArray[np.bool_]:
        """Of every row whether it is the first that was decoded of its answer."""
        rows = self.rows_of("decode")
        begins = np.zeros(len(self.answers), np.bool_)
        begins[rows[np.unique(self.answers[rows], return_index=True)[1]]] = True
        return begins

    def rows_of(self, phase: Phase) -> NDArray[np.int64]:
        """The rows of a phase in the order of answers, each answer's in the order of its tokens."""
        of_row = np.repeat(self.phases, np.diff(self.starts))
        rows = np.flatnonzero(of_row == PHASES.index(phase))
        return rows[np.argsort(self.answers[rows], kind="stable")]
