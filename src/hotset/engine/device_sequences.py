"""Several sequences on the GPU that step together, in captured steps of 1, 2, 4 or 8 rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.engine.prefixes import Prefixes
from hotset.engine.runner import Drawing, Drawn
from hotset.engine.sampling import draw_token, no_token
from hotset.errors import HotsetError
from hotset.kernels.sampler import ENDED, NO_TOKEN, RUNNING
from hotset.model.batch import MAX_ROWS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hotset.engine.device import DeviceRunner
    from hotset.engine.seat import Seat

SIZES = (1, 2, 4, MAX_ROWS)
# Tokens of a sequence that are drawn or under way before the host asks for the first of them.
AHEAD = 2


# Tokens of a prompt at once where it takes the decode kernels, which have eight rows: states are scanned in stretches of 64.
DECODE_CHUNK = 64


@dataclass(frozen=True)
class Ahead:
    """A token that was drawn and not asked for yet; `logits` where the host drew it."""

    token: int
    state: int
    logits: NDArray[np.float32] | None = None


class DeviceSequences:
    """See runner.Sequences.

    A step starts without waiting for the one before to be read. What a step drew for a sequence that is not asked for yet is kept: when
    sequences come or go the others lose nothing.
    """

    def __init__(self, runner: DeviceRunner, n_seqs: int) -> None:
        self.n_ctx = runner.n_ctx
        self.chunk = runner.chunks.scratch.max_rows if runner.chunks else DECODE_CHUNK
        self.tokens: list[list[int]] = [[] for _ in range(n_seqs)]
        self._runner = runner
        self._kv = runner.kv(runner.n_ctx, "fast", n_seqs)
        sizes = [m for i, m in enumerate(SIZES) if i == 0 or SIZES[i - 1] < n_seqs]
        self.seats = {m: runner.seat(m, self._kv, n_seqs) for m in sizes}
        # Draws the first token of a prompt while another seat may be under way.
        self._first = runner.seat(1, self._kv, n_seqs)
        self._prefixes = Prefixes(self._kv, n_seqs, has_states=runner.has_states)
        self._ahead: list[deque[Ahead]] = [deque() for _ in range(n_seqs)]
        self._drawing: dict[int, Drawing] = {}
        self._n_prompt = [0] * n_seqs
        # How long each sequence may become.
        self._limit = [self.n_ctx] * n_seqs
        self._seated: list[int] = []
        self._on_host = False
        # Of every step under way, the sequences that take part in it.
        self._flight: deque[list[int]] = deque()

    def start(self, seq: int, drawing: Drawing) -> None:
        self._leave(seq)
        self._drawing[seq] = drawing

    def keep(self, seq: int, n: int) -> int:
        return self.copy(seq, seq, n)

    def copy(self, source: int, target: int, n: int) -> int:
        self._leave(target)
        if source != target and self._runner.has_states:
            self.settle()
            self._note_ahead(source)
        n = self._prefixes.take(source, target, n)
        self.tokens[target] = self.tokens[source][:n]
        return n

    def feed(self, seq: int, tokens: Sequence[int], n_prompt: int) -> None:
        self._leave(seq)
        held, start = self.tokens[seq], self._prefixes.stored[seq]
        held += tokens
        logits = self._runner.feed_chunk(self._first.ops, seq, held[start:], start, n_prompt)
        self._prefixes.advance(seq, len(held))
        if n_prompt - len(held) <= self.chunk:
            self._prefixes.remember(seq)
        if logits is None:
            return
        drawing = self._drawing[seq]
        self._n_prompt[seq] = n_prompt
        max_tokens = drawing.params.max_tokens
        self._limit[seq] = self.n_ctx if max_tokens is None else min(self.n_ctx, len(held) + max_tokens)
        if drawing.wants_logits:
            self._draw_on_host(seq, logits[0].cpu().numpy())
            return
        self._first.place(0, held, drawing.params, drawing.seed, sorted(drawing.end_ids), seq)
        self._set_mask(self._first, seq)
        self._first.draw(logits)
        ((token, state),) = self._first.read()
        self._ahead[seq].append(Ahead(token, state))

    def step(self, seqs: Sequence[int]) -> list[Drawn | HotsetError]:
        on_host = any(self._drawing[s].wants_logits for s in seqs)
        if list(seqs) != self._seated or on_host != self._on_host:
            self.settle()
            self._seat(list(seqs), on_host=on_host)
        if on_host:
            self._step_on_host()
        else:
            self._step_ahead()
        return [self._take(s) for s in seqs]

    def settle(self) -> None:
        while self._flight:
            self._read()

    def reset(self) -> None:
        for seat in (self._first, *self.seats.values()):
            seat.discard()
        self._flight.clear()
        self._seated = []
        for seq in range(len(self.tokens)):
            self.tokens[seq] = []
            self._prefixes.forget(seq)
            self._ahead[seq].clear()

    @property
    def _now(self) -> Seat:
        return self.seats[next(m for m in self.seats if m >= len(self._seated))]

    def _can_go_on(self, seq: int) -> bool:
        """Whether another token is wanted: the last one was no end, and neither the context nor what was asked for is used up."""
        ahead = self._ahead[seq]
        held = len(self.tokens[seq]) + len(ahead) + sum(seq in part for part in self._flight)
        return held < self._limit[seq] and not any(a.state != RUNNING for a in ahead)

    def _so_far(self, seq: int) -> list[int]:
        return [*self.tokens[seq], *(a.token for a in self._ahead[seq])]

    def _begins(self, seq: int, held: Sequence[int]) -> bool:
        """Whether the step that stores the last of these tokens is the answer's first: the token was drawn from the prompt's logits."""
        return len(held) == self._n_prompt[seq] + 1

    def _seat(self, seqs: list[int], *, on_host: bool) -> None:
        self._seated, self._on_host = seqs, on_host
        seat = self._now
        for row in range(len(seat.rows)):
            seat.clear(row)
        for row, seq in enumerate(seqs):
            if self._can_go_on(seq):
                drawing = self._drawing[seq]
                held = self._so_far(seq)
                seat.place(
                    row,
                    held,
                    drawing.params,
                    drawing.seed,
                    sorted(drawing.end_ids),
                    seq,
                    begins=self._begins(seq, held),
                )

    def _step_ahead(self) -> None:
        masked = [s for s in self._seated if self._drawing[s].mask]
        while going := self._to_step(1 if masked else AHEAD):
            for row, seq in enumerate(self._seated):
                if seq not in going:
                    self._now.clear(row)
            if masked:  # what is allowed depends on the tokens before
                self.settle()
                for seq in masked:
                    self._set_mask(self._now, seq)
            self._runner.step(self._now, len(going))
            self._flight.append(going)
        while any(not self._ahead[s] for s in self._seated):
            self._read()

    def _to_step(self, depth: int) -> list[int]:
        """The sequences that can go on, where one of them has fewer than `depth` tokens drawn or under way."""
        going = [s for s in self._seated if self._can_go_on(s)]
        short = any(len(self._ahead[s]) + sum(s in part for part in self._flight) < depth for s in going)
        return going if short else []

    def _set_mask(self, seat: Seat, seq: int) -> None:
        if mask := self._drawing[seq].mask:
            seat.sampler.set_mask(seq, mask(self._so_far(seq)[self._n_prompt[seq] :]))

    def _read(self) -> None:
        """Take in the oldest step under way."""
        took_part = self._flight.popleft()
        for seq, (token, state) in zip(self._seated, self._now.read(), strict=False):
            ahead = self._ahead[seq]
            if seq in took_part and not any(a.state != RUNNING for a in ahead):
                ahead.append(Ahead(token, state))

    def _step_on_host(self) -> None:
        """One step of those that have nothing drawn yet, whose tokens the host draws."""
        behind = [s for s in self._seated if not self._ahead[s]]
        if not behind:
            return
        seat = self._now
        for row, seq in enumerate(self._seated):
            seat.clear(row)
            if seq in behind:
                held = self.tokens[seq]
                seat.sit(row, held[-1], len(held) - 1, begins=self._begins(seq, held))
        logits = self._runner.compute(seat, len(self._seated))
        for row, seq in enumerate(self._seated):
            if seq in behind:
                self._draw_on_host(seq, logits[row].copy())

    def _draw_on_host(self, seq: int, logits: NDArray[np.float32]) -> None:
        drawing = self._drawing[seq]
        try:
            token = draw_token(logits, drawing, self.tokens[seq], self._n_prompt[seq])
        except HotsetError:
            self._ahead[seq].append(Ahead(0, NO_TOKEN))
            return
        state = ENDED if token in drawing.end_ids else RUNNING
        self._ahead[seq].append(Ahead(token, state, logits if drawing.wants_logits else None))

    def _take(self, seq: int) -> Drawn | HotsetError:
        ahead = self._ahead[seq].popleft()
        if ahead.state == NO_TOKEN:
            return no_token("every logit is NaN or forbidden")
        # The step that drew a token stored the one before it.
        self._prefixes.advance(seq, len(self.tokens[seq]))
        self.tokens[seq].append(ahead.token)
        return Drawn(ahead.token, ahead.state == ENDED, ahead.logits)

    def _leave(self, seq: int) -> None:
        """Forget what ran ahead for a sequence, and seat it no more."""
        if seq in self._seated:
            self.settle()
            self._runner.note_unused(len(self._ahead[seq]), idle=False)
            self._seated = []
        self._note_ahead(seq)
        self._ahead[seq].clear()

    def _note_ahead(self, seq: int) -> None:
        """Tell how many tokens the states have seen, with nothing under way: all but the last one drawn."""
        if self._ahead[seq]:
            self._prefixes.ran_ahead(seq, len(self._so_far(seq)) - 1)
