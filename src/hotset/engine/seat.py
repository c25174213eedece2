"""A seat: a few sequences that step together, with everything a step needs lying still, so that one captured graph is the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hotset.kernels.report import report
from hotset.kernels.rows import BEGINS, PADDING, REAL, Rows
from hotset.kernels.sampler import WAYS, Sampler, Way
from hotset.model.device_kv import DeviceKV
from hotset.model.device_ops import DeviceBatch, DeviceOps, Routing
from hotset.model.transformer import forward

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.model.weights import Weights

# More than may be under way at once: the host reads an entry before it starts the step after the next.
RING = 16


class Seat:
    """`m` rows, one sequence each, of the `n_seqs` (by default m) that `kv` holds: their tokens, positions and sampler, and the steps captured on
    them. Until told otherwise row i is of sequence i.
    """

    def __init__(
        self, ops: DeviceOps, kv: DeviceKV, weights: Weights, n_vocab: int, m: int, *, use_graphs: bool, n_seqs: int | None = None
    ) -> None:  # fmt: skip
        device = weights.output_norm.weight.device

        def integers(value: int) -> torch.Tensor:
            return torch.full((m,), value, dtype=torch.int32, device=device)

        self.kv = kv
        self.ops = ops
        self.n_vocab = n_vocab
        self._seqs = [row % (n_seqs or m) for row in range(m)]
        seqs = torch.tensor(self._seqs, dtype=torch.int32, device=device)
        self.rows = Rows(integers(0), integers(0), seqs, integers(0))
        self.sampler = Sampler(m, n_seqs or m, n_vocab, device)
        self._weights = weights
        self._use_graphs = use_graphs and device.type == "cuda"
        self._graphs: dict[Way, torch.cuda.CUDAGraph] = {}
        self._count = torch.zeros(1, dtype=torch.int32, device=device)
        self._ring = torch.zeros(RING, m, 2, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._events = [torch.cuda.Event() for _ in range(RING)] if device.type == "cuda" else []  # type: ignore[no-untyped-call]
        self._started = self._read = 0

    def compile(self) -> None:
        """Run the steps idle: kernels compile and buffers are made; no expert is read."""
        for way in WAYS:
            with self._idle():
                self._step(way)

    def capture(self) -> None:
        """Capture the steps before they are needed."""
        if self._use_graphs:
            self._graphs = {way: self._capture(way) for way in WAYS}

    def follow(self, trace: torch.Tensor | None) -> None:
        """Take the picks of every step from a trace int16 [tokens, layers, k] on the device, or (None) from the router again.

        Captured steps are captured anew: each keeps the picks' source that it was captured with.
        """
        self.discard()
        self.ops.routing = None if trace is None else Routing(trace, torch.zeros_like(self.rows.seqs))
        captured = list(self._graphs)
        self._graphs.clear()
        for way in captured:
            self._graphs[way] = self._capture(way)

    def follows(self, trace: torch.Tensor | None) -> bool:
        """Whether the picks come from this trace (None: from the router)."""
        routing = self.ops.routing
        return (None if routing is None else routing.trace) is trace

    def begin_at(self, row: int, trace_at: int) -> None:
        """Say which token of the trace a row's position 0 is."""
        if self.ops.routing is not None:
            self.ops.routing.offsets[row] = trace_at

    def place(
        self, row: int, tokens: Sequence[int], params: SamplingParams, seed: int, end_ids: Sequence[int], seq: int | None = None,
        *, begins: bool = True,
    ) -> None:  # fmt: skip
        """Seat a sequence, by default that of the row before; the last of its tokens goes into the next step, or is what `draw` follows.

        `begins` says whether that step is an answer's first.
        """
        if seq is not None:
            self._seqs[row] = seq
            self.rows.seqs[row] = seq
        self.sit(row, tokens[-1], len(tokens) - 1, begins=begins)
        self.sampler.start(self._seqs[row], params, seed, tokens, end_ids)

    def sit(self, row: int, token: int, position: int, *, begins: bool) -> None:
        """Put a token of the row's sequence into the next step, which may be an answer's first."""
        self.rows.tokens[row] = token
        self.rows.positions[row] = position
        self.rows.row_mask[row] = BEGINS if begins else REAL

    def clear(self, row: int) -> None:
        """Make a row idle."""
        self.rows.row_mask[row] = PADDING
        self.sampler.stop(self._seqs[row])

    def draw(self, logits: torch.Tensor) -> None:
        """Draw every row's token from logits [m, n_vocab] of the prompts: the next step is the first of their answers."""
        self._sample(self.sampler.way, logits)
        self.rows.row_mask.mul_(BEGINS)  # of rows that go on the sampler makes REAL, which is 1
        self._note()

    def step(self) -> None:
        """Start a decode step: the tokens drawn last go in, the next ones are drawn. Does not wait."""
        way = self.sampler.way
        if not self._use_graphs:
            self._step(way)
        else:
            if way not in self._graphs:
                self._graphs[way] = self._capture(way)
            self._graphs[way].replay()
        self._note()

    def compute(self) -> torch.Tensor:
        """Run a step without drawing, kernel by kernel -> its logits [m, n_vocab], for the host to draw from."""
        logits: torch.Tensor = forward(self.ops, self._weights, DeviceBatch(self.rows))
        return logits[:, : self.n_vocab]

    def read(self) -> list[tuple[int, int]]:
        """Token and sampler state of every row, of the oldest step not read yet; waits for that step alone."""
        assert self.pending
        entry = self._read % RING
        if self._events:
            self._events[entry].synchronize()
        self._read += 1
        return [tuple(pair) for pair in self._ring[entry].tolist()]

    @property
    def pending(self) -> int:
        """Steps started and not read."""
        return self._started - self._read

    def discard(self) -> int:
        """Wait for what is under way and forget it; how many steps that were."""
        n = self.pending
        while self.pending:
            self.read()
        return n

    def _note(self) -> None:
        if self._events:
            self._events[self._started % RING].record()
        self._started += 1
        assert self.pending < RING

    def _step(self, way: Way) -> None:
        self._sample(way, self.compute())

    def _sample(self, way: Way, logits: torch.Tensor) -> None:
        self.sampler.step(way, logits, self.rows)
        report(self.rows, self.sampler.done, self._count, self._ring)

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Steps inside have no rows; everything is as before after them."""
        mask, count = self.rows.row_mask.clone(), self._count.clone()
        self.rows.row_mask.zero_()
        yield
        self.rows.row_mask.copy_(mask)
        self._count.copy_(count)

    def _capture(self, way: Way) -> torch.cuda.CUDAGraph:
        """Record the step. It is run idle first: kernels compile, buffers are made, and nothing else changes."""
        with self._idle():
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._step(way)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._step(way)
        return graph
