"""The trace file: what a run picked, request by request, written as it happens and usable after a crash. docs/trace-format.md describes it byte by byte."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from hotset.errors import FileError, InputError
from hotset.experts.policy import Policy
from hotset.experts.slots import CacheShape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numpy.typing import NDArray

MAGIC = b"HOTTRACE"
VERSION = 1
MAX_HEADER_BYTES = 1 << 20
MAX_EXPERTS = 1 << 16
HINT = "record it again with `hotset trace`"

PREFIX = struct.Struct("<8sII")  # magic, version, bytes of the header
FRAME = struct.Struct("<BI")  # kind, bytes of the content; a CRC-32 of both and the content follows
CHECKSUM = struct.Struct("<I")
ANSWER, STEP, COUNTS, END = range(1, 5)
STEP_HEAD = struct.Struct("<BH")  # phase, rows

Phase = Literal["prompt", "decode"]
PHASES: tuple[Phase, ...] = ("prompt", "decode")
Columns = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


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


class TraceWriter:
    """Writes a trace file; every record is one write, so that what was recorded before a crash is there."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self.header = header
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

    def rows_of(self, phase: Phase) -> NDArray[np.int64]:
        """The rows of a phase in the order of answers, each answer's in the order of its tokens."""
        of_row = np.repeat(self.phases, np.diff(self.starts))
        rows = np.flatnonzero(of_row == PHASES.index(phase))
        return rows[np.argsort(self.answers[rows], kind="stable")]


def read_run(path: Path) -> RecordedRun:
    """Read a trace file. Raises FileError where it is damaged; a file that only ends early is read as far as it goes."""
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError:
        raise FileError(path, "trace", "no such file", hint="check the path") from None
    except OSError as error:
        raise FileError(path, "trace", f"cannot be read ({error.strerror})", hint="check the path") from error
    return _RunReader(path, data).read()


class _RunReader:
    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.n_answers = 0
        self.phases: list[int] = []
        self.n_rows: list[int] = []
        self.answers: list[NDArray[np.uint32]] = []
        self.picks: list[NDArray[Any]] = []
        self.weights: list[NDArray[np.float16]] = []
        self.counts: dict[Phase, PhaseCounts] | None = None
        self.counted_steps = 0
        self.complete = False

    def problem(self, thing: str, problem: str, value: object = None) -> FileError:
        return FileError(self.path, thing, problem, value=value, hint=HINT)

    def read(self) -> RecordedRun:
        self.header, start = self._header()
        actions = {ANSWER: self._answer, STEP: self._step, COUNTS: self._counts, END: self._end}
        for kind, where, content in self._frames(start):
            if self.complete:
                raise self.problem(f"byte {where}", "something follows the record that ends the trace")
            if kind not in actions:
                raise self.problem(
                    f"record at byte {where}", f"its kind is {kind}, which this version does not know", kind
                )
            actions[kind](f"record at byte {where}", content)
        return self._result()

    def _header(self) -> tuple[TraceHeader, int]:
        data = self.data
        if len(data) < PREFIX.size:
            raise self.problem("trace", f"has {len(data)} bytes, fewer than a header takes")
        magic, version, n = PREFIX.unpack_from(data)
        if magic != MAGIC:
            raise self.problem("trace", "is no hotset trace: it begins with other bytes", bytes(magic))
        if version != VERSION:
            raise self.problem("version", f"is {version}; this hotset reads version {VERSION}", version)
        end = PREFIX.size + n
        if n > MAX_HEADER_BYTES or end + CHECKSUM.size > len(data):
            raise self.problem("header", f"takes {n} bytes, more than there are", n)
        content = bytes(data[PREFIX.size : end])
        if CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(content):
            raise self.problem("header", "is damaged: its checksum is wrong")
        try:
            return TraceHeader.decoded(content), end + CHECKSUM.size
        except (ValueError, RecursionError) as error:  # InputError is a ValueError too
            raise self.problem("header", f"makes no sense: {error}") from error

    def _frames(self, at: int) -> Iterator[tuple[int, int, memoryview]]:
        """Records as (kind, where, content); one that the end of the file cuts off was being written when the run ended."""
        data = self.data
        while at + FRAME.size <= len(data):
            kind, n = FRAME.unpack_from(data, at)
            end = at + FRAME.size + n
            if end + CHECKSUM.size > len(data):
                return
            if CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(data[at:end]):
                raise self.problem(f"record at byte {at}", "is damaged: its checksum is wrong")
            yield kind, at, data[at + FRAME.size : end]
            at = end + CHECKSUM.size

    def _answer(self, where: str, content: memoryview) -> None:
        if len(content) != 8 or struct.unpack("<II", content)[0] != self.n_answers:
            raise self.problem(where, f"is not the beginning of answer {self.n_answers}")
        self.n_answers += 1

    def _step(self, where: str, content: memoryview) -> None:
        h = self.header
        if len(content) < STEP_HEAD.size:
            raise self.problem(where, f"is a step of {len(content)} bytes")
        phase, rows = STEP_HEAD.unpack_from(content)
        n = rows * h.n_layers * h.k
        sizes = (4 * rows, n * h.pick_type.itemsize, 2 * n if h.weights else 0)
        if phase >= len(PHASES) or not 1 <= rows <= h.max_rows or len(content) != STEP_HEAD.size + sum(sizes):
            raise self.problem(where, f"is a step of phase {phase}, {rows} rows and {len(content)} bytes")
        begin = STEP_HEAD.size
        answers = np.frombuffer(content, "<u4", rows, begin)
        picks = np.frombuffer(content, h.pick_type, n, begin + sizes[0]).reshape(h.n_layers, rows, h.k)
        if rows and answers.max() >= self.n_answers:
            raise self.problem(where, f"has a row of answer {answers.max()}, which has not begun", int(answers.max()))
        self.phases.append(phase)
        self.n_rows.append(rows)
        self.answers.append(answers)
        self.picks.append(picks.transpose(1, 0, 2))
        if h.weights:
            weights = np.frombuffer(content, "<f2", n, begin + sizes[0] + sizes[1])
            self.weights.append(weights.reshape(h.n_layers, rows, h.k).transpose(1, 0, 2))

    def _counts(self, where: str, content: memoryview) -> None:
        n_layers = self.header.n_layers
        try:
            values = json.loads(bytes(content))
            counts: dict[Phase, PhaseCounts] = {phase: _phase_counts(values[phase], n_layers) for phase in PHASES}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.problem(where, f"holds no counters: {error}") from error
        self.counts, self.counted_steps = counts, len(self.phases)

    def _end(self, where: str, content: memoryview) -> None:
        if len(content):
            raise self.problem(where, "ends the trace, but has a content")
        self.complete = True

    def _result(self) -> RecordedRun:
        h = self.header
        shape = (0, h.n_layers, h.k)
        picks = np.concatenate([np.empty(shape, h.pick_type), *self.picks])
        self._check_picks(picks)
        weights = np.concatenate([np.empty(shape, np.float16), *self.weights]) if h.weights else None
        return RecordedRun(
            header=h,
            phases=np.array(self.phases, np.uint8),
            starts=np.concatenate([[0], np.cumsum(self.n_rows)]).astype(np.int64),
            answers=np.concatenate([np.empty(0, np.uint32), *self.answers]),
            picks=picks,
            weights=weights,
            counts=self.counts,
            counted_steps=self.counted_steps,
            complete=self.complete,
        )

    def _check_picks(self, picks: NDArray[Any]) -> None:
        limit = np.array(self.header.n_experts)[:, None]
        if np.any(picks >= limit):
            row, layer, _ = np.argwhere(picks >= limit)[0]
            raise self.problem("picks", f"row {row} picks expert {picks[row, layer].max()} in layer {layer}")
        ordered = np.sort(picks, axis=-1)
        if np.any(ordered[..., 1:] == ordered[..., :-1]):
            raise self.problem("picks", "a row picks the same expert twice in a layer")


def _phase_counts(values: Any, n_layers: int) -> PhaseCounts:
    columns = {}
    for name in ("hits", "misses", "overflows"):
        column = values[name]
        if not isinstance(column, list) or len(column) != n_layers or any(type(v) is not int or v < 0 for v in column):
            raise ValueError(f"{name} must be {n_layers} whole numbers")
        columns[name] = tuple(column)
    n_bytes = values["bytes_fetched"]
    if type(n_bytes) is not int or n_bytes < 0:
        raise ValueError(f"bytes_fetched is {n_bytes!r}")
    return PhaseCounts(**columns, bytes_fetched=n_bytes)
