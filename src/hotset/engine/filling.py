"""The file's experts into the bank: read and rearranged by several threads, and page-locked behind them as the bank fills."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from hotset.experts.bank import ExpertBank
    from hotset.quant.layout import Bytes

# What a thread takes at a time: large enough for a disk, small enough that many threads share one tensor.
PART_BYTES = 8 << 20
# How many more tensors may be under way than the oldest: it bounds what of the file is in memory beside the bank.
AHEAD = 2

A = TypeVar("A")
R = TypeVar("R")


class StoppedError(Exception):
    """What others waited for will not come."""


class Gauge:
    """How many bytes of the bank, from its start on, are filled; threads wait for it to rise."""

    def __init__(self) -> None:
        self._change = Condition()
        self._level = 0
        self._stopped = False

    def rise(self, level: int) -> None:
        """Say that `level` bytes are filled."""
        with self._change:
            self._level = level
            self._change.notify_all()

    def stop(self) -> None:
        """Say that no more will come, or that none is wanted."""
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def check(self) -> None:
        """StoppedError where it was stopped."""
        if self._stopped:
            raise StoppedError

    def wait(self, level: int) -> None:
        """Wait until `level` bytes are filled; StoppedError where they will not be."""
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._level >= level)
            if self._level < level:
                raise StoppedError


class Filling:
    """Fills a bank and page-locks it behind that, each in a thread of its own; the end of the `with` block stops what still runs."""

    def __init__(self, fill: Callable[[Gauge], None], lock: Callable[[Callable[[int], None]], str | None]) -> None:
        """`fill` raises the gauge; `lock` gets a function that waits for so many bytes, and says what the user should be told."""
        self._gauge = Gauge()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="hotset-load")
        self._filled = self._pool.submit(self._run, fill, self._gauge)
        self._locked = self._pool.submit(self._run, lock, self._gauge.wait)

    def _run(self, work: Callable[[A], R], argument: A) -> R:
        try:
            return work(argument)
        except BaseException:
            self._gauge.stop()  # the other one need not go on
            raise

    def finish(self) -> str | None:
        """Wait for both; what `lock` said."""
        errors = [future.exception() for future in (self._filled, self._locked)]
        for error in errors:
            if error and not isinstance(error, StoppedError):
                raise error
        return self._locked.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gauge.stop()
        self._pool.shutdown()


@dataclass(frozen=True)
class Reader:
    """Where experts come from: `blocks` gives the GGUF bytes of a role's experts of a layer, `let_go` says that a layer's are copied."""

    blocks: Callable[[int, str], Bytes]
    let_go: Callable[[int], None]


@dataclass(frozen=True)
class _Matrices:
    """One role's experts of a layer on their way."""

    layer: int
    is_last: bool
    n_bytes: int
    parts: list[Future[None]]


def fill(
    bank: ExpertBank, reader: Reader, n_threads: int, gauge: Gauge, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Fill the bank, layer by layer, with `n_threads`; pages of the file are let go as they are copied. StoppedError where the gauge is.

    `progress` is told how many of the file's bytes are done.
    """
    under_way: deque[_Matrices] = deque()
    done = 0

    def finish(at_most: int) -> None:
        nonlocal done
        while len(under_way) > at_most:
            matrices = under_way.popleft()
            for part in matrices.parts:
                part.result()
            if matrices.is_last:
                reader.let_go(matrices.layer)
                gauge.rise(sum(bank.span_bytes[: matrices.layer + 1]) * bank.n_experts)
            done += matrices.n_bytes
            progress(done)

    with ThreadPoolExecutor(n_threads, thread_name_prefix="hotset-fill") as pool:
        try:
            for layer, span in enumerate(bank.spans):
                for role in span.roles:
                    gauge.check()
                    blocks = reader.blocks(layer, role)
                    parts = _start(pool, bank, blocks, layer, role)
                    under_way.append(_Matrices(layer, role == span.roles[-1], blocks.nbytes, parts))
                    finish(AHEAD)
            finish(0)
        except BaseException:
            gauge.stop()
            pool.shutdown(cancel_futures=True)
            raise


def _start(pool: ThreadPoolExecutor, bank: ExpertBank, blocks: Bytes, layer: int, role: str) -> list[Future[None]]:
    """Start the parts: runs of experts."""
    per_expert = blocks.size // bank.n_experts
    step = max(1, PART_BYTES // per_expert)

    def part(first: int) -> None:
        bank.fill(layer, role, blocks[first * per_expert : (first + step) * per_expert], first)

    return [pool.submit(part, first) for first in range(0, bank.n_experts, step)]
