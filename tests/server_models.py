"""An engine whose logits are random: it shows what is forced on a model, and how whatever it writes is read."""

from __future__ import annotations

from copy import copy

import numpy as np

from hotset.engine.runner import Drawn
from hotset.engine.sampling import draw_token
from hotset.errors import HotsetError
from scripted import ScriptedEngine, ScriptedSequences, base_engine


class RandomSequences(ScriptedSequences):
    """Draws from random logits as the real ones do from theirs."""

    def feed(self, seq: int, tokens: list[int], n_prompt: int) -> None:
        super().feed(seq, tokens, n_prompt)
        self.n_prompt = {**getattr(self, "n_prompt", {}), seq: n_prompt}

    def _draw(self, seq: int) -> Drawn | HotsetError:
        drawing, tokens = self._drawing[seq], self.tokens[seq]
        noise = np.random.default_rng([len(tokens), drawing.seed % 1000]).normal(size=self._n_vocab)
        try:
            token = draw_token(noise.astype(np.float32), drawing, tokens, self.n_prompt[seq])
        except HotsetError as error:
            return error
        tokens.append(token)
        return Drawn(token, token in drawing.end_ids)


class RandomEngine(ScriptedEngine):
    def sequences(self, n_seqs: int) -> RandomSequences:
        return RandomSequences(n_seqs, self.n_ctx, self.config.n_vocab)


def random_engine(n_ctx: int) -> RandomEngine:
    engine = copy(base_engine())
    engine.__class__ = RandomEngine
    engine.n_ctx = n_ctx
    return engine


class SayingSequences(ScriptedSequences):
    """Writes the tokens of one text, then an end token, as far as a mask lets it."""

    script: list[int]

    def feed(self, seq: int, tokens: list[int], n_prompt: int) -> None:
        super().feed(seq, tokens, n_prompt)
        self.n_prompt = {**getattr(self, "n_prompt", {}), seq: n_prompt}

    def _draw(self, seq: int) -> Drawn | HotsetError:
        drawing, tokens = self._drawing[seq], self.tokens[seq]
        n = len(tokens) - self.n_prompt[seq]
        logits = np.zeros(self._n_vocab, np.float32)
        logits[self.script[n] if n < len(self.script) else min(drawing.end_ids)] = 100
        token = draw_token(logits, drawing, tokens, self.n_prompt[seq])
        tokens.append(token)
        return Drawn(token, token in drawing.end_ids)


class SayingEngine(ScriptedEngine):
    def sequences(self, n_seqs: int) -> SayingSequences:
        self.saying = SayingSequences(n_seqs, self.n_ctx, self.config.n_vocab)
        return self.saying

    def say(self, text: str) -> None:
        """What every answer is from now on."""
        self.saying.script = self.tokenize(text, add_special=False)


def saying(template: str) -> SayingEngine:
    """An engine behind a template that writes what it is told to."""
    engine = copy(base_engine())
    engine.__class__ = SayingEngine
    engine.n_ctx = 4096
    engine.use_template(template)
    return engine
