"""Several sequences on the CPU that step together: one forward pass over a row of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotset.engine.host import CHUNK
from hotset.engine.prefixes import Prefixes
from hotset.engine.runner import Drawing, Drawn
from hotset.engine.sampling import draw_token
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
        self._prefixes = Prefixes(self._kv, n_seqs, has_states=runner.model.config.state_elements > 0)
        self._n_prompt = [0] * n_seqs
        self._logits: list[Logits | None] = [None] * n_seqs
        self._drawing: dict[int, Drawing] = {}

    def start(self, seq: int, drawing: Drawing) -> None:
        self._drawing[seq] = drawing

    def keep(self, seq: int, n: int) -> int:
        return self.copy(seq, seq, n)

    def copy(self, source: int, target: int, n: int) -> int:
        n = self._prefixes.take(source, target, n)
        self.tokens[target] = self.tokens[source][:n]
        self._logits[target] = None
        return n

    def feed(self, seq: int, tokens: Sequence[int], n_prompt: int) -> None:
        held = self.tokens[seq]
        held += tokens
        start = self._prefixes.stored[seq]
        last = [len(held) - start - 1] if len(held) == n_prompt else []
        logits = self._runner.feed_chunk(self._ops, prompt_batch(held[start:], start, sequence=seq, wanted=last))
        self._prefixes.advance(seq, len(held))
        if n_prompt - len(held) <= self.chunk:
            self._prefixes.remember(seq)
        self._n_prompt[seq] = n_prompt
        self._logits[seq] = logits[0] if last else None

    def step(self, seqs: Sequence[int]) -> list[Drawn | HotsetError]:
        if behind := [s for s in seqs if self._logits[s] is None]:
            last = [self.tokens[s][-1] for s in behind]
            positions = [len(self.tokens[s]) - 1 for s in behind]
            begins = [at == self._n_prompt[s] for at, s in zip(positions, behind, strict=True)]
            batch = step_batch(last, positions, behind, begins)
            for s, row in zip(behind, self._runner.step(self._ops, batch), strict=True):
                self._logits[s] = row
                self._prefixes.advance(s, len(self.tokens[s]))
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
            self.tokens[seq], self._logits[seq] = [], None
            self._prefixes.forget(seq)
