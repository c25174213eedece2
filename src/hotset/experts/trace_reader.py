"""Read a trace file, and refuse a damaged one by name."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import FileError
from hotset.experts.trace_file import (
    ANSWER,
    CHECKSUM,
    COUNTS,
    END,
    FRAME,
    MAGIC,
    PHASES,
    PREFIX,
    STEP,
    STEP_HEAD,
    VERSION,
    Phase,
    PhaseCounts,
    RecordedRun,
    TraceHeader,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAX_HEADER_BYTES = 1 << 20
HINT = "record it again with `hotset trace`"


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
