"""Sequences that compute nothing: every prompt is answered by tokens made from it, and what is done is written down."""

from __future__ import annotations

import threading
from copy import copy
from functools import cache

import numpy as np

from fakes import fake_engine
from hotset.engine.engine import Engine
from hotset.engine.runner import Drawing, Drawn
from hotset.errors import HotsetError

CHUNK = 8


class ScriptedSequences:
    """Token n of an answer depends on all that came before it, so that a wrong prefix shows; `on_feed` and `on_step` may wait or raise."""

    chunk = CHUNK

    def __init__(self, n_seqs: int, n_ctx: int, n_vocab: int) -> None:
        self.n_ctx = n_ctx
        self.tokens: list[list[int]] = [[] for _ in range(n_seqs)]
        self.fed: list[tuple[int, int]] = []
        self.steps: list[list[int]] = []
        self.on_feed = lambda: None
        self.on_step = lambda: None
        self.settled = 0
        self._n_vocab = n_vocab
        self._drawing: dict[int, Drawing] = {}

    def start(self, seq: int, drawing: Drawing) -> None:
        self._drawing[seq] = drawing

    def keep(self, seq: int, n: int) -> int:
        del self.tokens[seq][n:]
        return len(self.tokens[seq])

    def copy(self, source: int, target: int, n: int) -> int:
        self.tokens[target] = self.tokens[source][:n]
        return n

    def feed(self, seq: int, tokens: list[int], n_prompt: int) -> None:
        self.on_feed()
        assert len(tokens) <= CHUNK
        self.tokens[seq] += tokens
        assert len(self.tokens[seq]) <= n_prompt
        self.fed.append((seq, len(tokens)))

    def step(self, seqs: list[int]) -> list[Drawn | HotsetError]:
        self.on_step()
        self.steps.append(list(seqs))
        return [self._draw(seq) for seq in seqs]

    def _draw(self, seq: int) -> Drawn | HotsetError:
        drawing = self._drawing[seq]
        if drawing.seed == 666:
            return HotsetError("no token can be drawn")
        token = script(self.tokens[seq], drawing.seed, self._n_vocab)
        self.tokens[seq].append(token)
        assert len(self.tokens[seq]) <= self.n_ctx
        logits = np.zeros(self._n_vocab, np.float32) if drawing.wants_logits else None
        return Drawn(token, token in drawing.end_ids, logits)

    def settle(self) -> None:
        self.settled += 1

    def reset(self) -> None:
        self.tokens = [[] for _ in self.tokens]
        self.on_feed = self.on_step = lambda: None


def script(tokens: list[int], seed: int, n_vocab: int) -> int:
    """The token that follows; never a control token of the demo model."""
    return 300 + (hash((tuple(tokens), seed)) % (n_vocab - 300))


class ScriptedEngine(Engine):
    """An engine of the demo model's tokenizer over scripted sequences; the newest are in `scripted`."""

    scripted: ScriptedSequences

    def sequences(self, n_seqs: int) -> ScriptedSequences:
        self.scripted = ScriptedSequences(n_seqs, self.n_ctx, self.config.n_vocab)
        return self.scripted


@cache
def base_engine() -> Engine:
    return fake_engine(template=False)


def scripted_engine(n_ctx: int = 64) -> ScriptedEngine:
    engine = copy(base_engine())
    engine.__class__ = ScriptedEngine
    engine.n_ctx = n_ctx
    return engine


class Gate:
    """Lets a thread through a set number of times."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)

    def __call__(self) -> None:
        self._passes.acquire(timeout=30)

    def open(self, n: int = 1) -> None:
        self._passes.release(n)
