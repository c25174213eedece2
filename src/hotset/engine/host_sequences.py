"""Several sequences on the CPU that step together: one forward pass over a row of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotset.engine.host import CHUNK
from hotset.engine.runner import Drawing, Drawn
from hotset.engine.sampling import draw_token
from hotset.engine.snapshots import Snapshots
from hotset.errors import HotsetError
from hotset.model.batch import prompt_batch, step_batch

if TYPE_CHECKING:
    from hotset.engine.host import HostRunner

Logits = NDArray[np.float32]


class HostSequences:
    """See runner.Sequences. Numbers are the same bits whatever steps together and whatever was reused."""

    chunk = CHUNK

    def __init__(self, runner: HostRunner, n_seqs: int, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.tokens: list[list[int]] = [[] for _ in range(n_seqs)]
        self._runner = runner
        self._kv = runner.kv(n_ctx, "fast", n_seqs)
        self._ops = runner.ops(self._kv, "fast")
        self._has_states = runner.model.config.state_elements > 0
        self._snapshots = [Snapshots() for _ in range(n_seqs)]
        self._stored = [0] * n_seqs
        self._n_prompt = [0] * n_seqs
        self._logits: list[Logits | None] = [None] * n_seqs
        self._drawing: dict[int, Drawing] = {}

    def start(self, seq: int, drawing: Drawing) -> None:
        self._drawing[seq] = drawing

    def keep(self, seq: int, n: int) -> int:
        n = min(n, self._stored[seq])
        return self._hold(seq, seq, n)

    def copy(self, source: int, target: int, n: int) -> int:
        n = min(n, self._stored[source])
        self._kv.copy(source, target, n)
        return self._hold(source, target, n)

    def _hold(self, source: int, target: int, n: int) -> int:
        """Make the target hold the source's first `n` tokens, whose keys and values it has; with states as many as they can be taken back to."""
        if self._has_states and n < self._stored[source]:
            found = self._snapshots[source].longest(n)
            n = found.n if found else 0
            if found:
                self._kv.set_state(target, found.state)
        elif self._has_states and source != target:
            self._kv.set_state(target, self._kv.state(source))
        self._snapshots[target] = self._snapshots[source].until(n)
        self.tokens[target] = self.tokens[source][:n]
        self._stored[target] = n
        self._logits[target] = None
        return n

    def feed(self, seq: int, tokens: Sequence[int], n_prompt: int) -> None:
        held = self.tokens[seq]
        held += tokens
        start = self._stored[seq]
        last = [len(held) - start - 1] if len(held) == n_prompt else []
        logits = self._runner.feed_chunk(self._ops, prompt_batch(held[start:], start, sequence=seq, wanted=last))
        self._stored[seq] = len(held)
        self._n_prompt[seq] = n_prompt
        self._logits[seq] = logits[0] if last else None
        if self._has_states:
            self._snapshots[seq].add(len(held), self._kv.state(seq))

    def step(self, seqs: Sequence[int]) -> list[Drawn | HotsetError]:
        if behind := [s for s in seqs if self._logits[s] is None]:
            last = [self.tokens[s][-1] for s in behind]
            batch = step_batch(last, [len(self.tokens[s]) - 1 for s in behind], behind)
            for s, row in zip(behind, self._runner.step(self._ops, batch), strict=True):
                self._logits[s] = row
                self._stored[s] = len(self.tokens[s])
        return [self._draw(s) for s in seqs]

    def _draw(self, seq: int) -> Drawn | HotsetError:
        tokens, drawing, logits = self.tokens[seq], self._drawing[seq], self._logits[seq]
        assert logits is not None
        try:
            token = draw_token(logits, drawing, tokens, self._n_prompt[seq])
        except HotsetError as error:
            return error
        self._logits[seq] = None
        tokens.append(token)
        return Drawn(token, token in drawing.end_ids, logits if drawing.wants_logits else None)

    def settle(self) -> None:
        """Nothing is ever under way here."""

    def reset(self) -> None:
        for seq in range(len(self.tokens)):
            self.tokens[seq], self._stored[seq], self._logits[seq] = [], 0, None
            self._snapshots[seq] = Snapshots()
