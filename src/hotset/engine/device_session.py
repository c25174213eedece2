"""One sequence on the GPU: its seat, and the steps that run ahead of the host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotset.engine.runner import Drawn, TokenMask
from hotset.engine.sampling import no_token
from hotset.kernels.sampler import ENDED, NO_TOKEN

if TYPE_CHECKING:
    from hotset.config import SamplingParams
    from hotset.engine.device import DeviceRunner


class DeviceSession:
    """See runner.Session. A step starts without waiting for the host to read the one before, so one may be under way that is not needed.

    With a token mask it waits: what is allowed depends on the token before.
    """

    def __init__(self, runner: DeviceRunner, n_ctx: int) -> None:
        self.n_ctx = min(n_ctx, runner.n_ctx)
        self.tokens: list[int] = []
        self._runner = runner
        self._seat = runner.take_seat()
        self._stored = self._left = 0
        self._ended = self._ran_ahead = False
        self._has_states = runner.model.config.state_elements > 0

    def __del__(self) -> None:
        if hasattr(self, "_seat") and not sys.is_finalizing():
            self._settle()
            self._runner.give_seat(self._seat)

    def start(self, params: SamplingParams, seed: int, end_ids: frozenset[int], mask: TokenMask | None = None) -> None:
        self._params, self._seed, self._end_ids, self._mask = params, seed, sorted(end_ids), mask

    def keep(self, n: int) -> None:
        self._settle()
        del self.tokens[n:]
        # A state cannot be cut back, nor can what ran ahead be taken out of it: it is computed anew from the first token on.
        is_cut = self._has_states and (n < self._stored or self._ran_ahead)
        self._stored = 0 if is_cut else min(self._stored, n)
        self._ran_ahead = False

    def feed(self, tokens: Sequence[int]) -> None:
        self._settle()
        self.tokens += tokens
        left = self.tokens[self._stored :]
        logits = self._runner.feed(self._seat.ops, left, self._stored)
        self._stored += len(left)
        self._seat.place(0, self.tokens, self._params, self._seed, self._end_ids)
        self._n_prompt = len(self.tokens)
        self._set_mask()
        self._seat.draw(logits)
        self._left = self.n_ctx - len(self.tokens) - 1
        if self._params.max_tokens is not None:
            self._left = min(self._left, self._params.max_tokens - 1)

    def begin(self, token: int, *, trace_at: int = 0) -> None:
        self._settle()
        self.tokens, self._stored, self._n_prompt = [token], 0, 1
        self._seat.begin_at(0, trace_at)
        self._seat.place(0, self.tokens, self._params, self._seed, self._end_ids)
        self._left = self.n_ctx - 1
        if self._params.max_tokens is not None:
            self._left = min(self._left, self._params.max_tokens)

    def next(self) -> Drawn:
        seat, limit = self._seat, 1 if self._mask else 2
        if not seat.pending and self._left <= 0:
            self._left = 1
        while seat.pending < limit and self._left > 0:
            self._set_mask()
            self._runner.step(seat)
            self._left -= 1
        ((token, state),) = seat.read()
        if state == NO_TOKEN:
            raise no_token("every logit is NaN or forbidden")
        # The step that drew a token stored the one before it.
        self._stored = len(self.tokens)
        self.tokens.append(token)
        self._ended = state == ENDED
        return Drawn(token, self._ended)

    def _set_mask(self) -> None:
        if self._mask:
            self._seat.sampler.set_mask(0, self._mask(self.tokens[self._n_prompt :]))

    def _settle(self) -> None:
        pending = self._seat.discard()
        self._ran_ahead |= pending > 0 and not self._ended
        # After an end token the row was idle: those steps did nothing.
        self._runner.note_unused(pending, idle=self._ended)
        self._seat.clear(0)
        self._left, self._ended = 0, False
