"""A real Engine over a runner that computes nothing: it writes a given text over and over, and time passes only when it says so."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from hotset.engine.engine import Engine
from hotset.engine.loading import resolve
from hotset.engine.memory import MemoryPlan, MemoryRow
from hotset.engine.runner import Drawn
from hotset.engine.stats import LayerStats, PhaseStats, Stats
from hotset.errors import InputError
from hotset.experts.slots import CacheShape
from hotset.gguf import open_gguf
from hotset.model import model_config
from hotset.model.batch import MAX_ROWS
from hotset.text.chat import ChatTemplate, default_template
from hotset.text.tokenizer import Tokenizer

SPAN = 1000
HITS, MISSES = 3, 1


class Clock:
    """Seconds that only `pass_` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class FakeSession:
    def __init__(self, runner: FakeRunner, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.tokens: list[int] = []
        self.prompts: list[list[int]] = []
        self._runner = runner
        self._has_logits = False

    def start(self, params, seed, end_ids, mask=None) -> None:
        self._runner.params = params
        self._end_ids = end_ids

    def keep(self, n: int) -> None:
        del self.tokens[n:]

    def feed(self, tokens) -> None:
        self._runner.on_feed(len(tokens))
        self.tokens += tokens
        self.prompts.append(list(self.tokens))
        self._has_logits = True

    def begin(self, token, *, trace_at=0) -> None:
        self._runner.calls.append(f"begin at {trace_at}")
        self.tokens = [token]
        self._has_logits = False

    def next(self) -> Drawn:
        if not self._has_logits:
            self._runner.on_step()
        self._has_logits = False
        token = next(self._runner)
        self.tokens.append(token)
        return Drawn(token, token in self._end_ids)


class FakeRunner:
    """Prompts take `prompt_s` seconds and steps `step_s`; every step hits HITS and misses MISSES experts in one layer."""

    def __init__(
        self, script: list[int], n_vocab: int, clock: Clock, prompt_s: float, step_s: float, shape: CacheShape
    ) -> None:
        self.device = "cpu"
        self.shape = shape
        self.routing = None
        self.twins: list[FakeRunner] = []
        self.active = False
        self.unused_steps = 0
        self.prefetched = None
        self.calls: list[str] = []
        self.sessions: list[FakeSession] = []
        self.wanted: list[list[int]] = []
        self.params = None
        self.clock = clock
        self.prompt_s = prompt_s
        self.step_s = step_s
        self.on_token = lambda: None
        self._script = script
        self._n_vocab = n_vocab
        self._drawn = 0
        self.reset_stats()

    def __next__(self) -> int:
        self.on_token()
        self._drawn += 1
        return self._script[(self._drawn - 1) % len(self._script)]

    def on_feed(self, n: int) -> None:
        self.calls.append(f"feed {n}")
        self.clock.pass_(self.prompt_s)
        self._prompt_tokens += n

    def on_step(self) -> None:
        self.clock.pass_(self.step_s)
        self._steps += 1

    def beside(self, n_slots, policy, *, threads=None, bus_factor=1):
        if bus_factor != 1:
            raise InputError("bus factor: this is a fake")
        twin = copy(self)
        twin.shape = replace(self.shape, n_slots=tuple(n_slots))
        twin.calls, twin.sessions = [], []
        twin.policy = policy
        twin.reset_stats()
        self.twins.append(twin)
        return twin

    def set_routing(self, picks) -> None:
        self.routing = picks

    def session(self, n_ctx: int) -> FakeSession:
        self.sessions.append(FakeSession(self, n_ctx))
        return self.sessions[-1]

    def logits(self, tokens, wanted, mode, *, stepwise):
        self.wanted.append(list(wanted))
        return np.zeros((len(wanted), self._n_vocab), np.float32)

    def reset_stats(self) -> None:
        self._prompt_tokens = self._steps = 0

    def reset_cache(self) -> None:
        self.calls.append("reset cache")
        self.reset_stats()

    def stats(self) -> Stats:
        decode, prompt = phase(self._steps), phase(self._prompt_tokens)
        return Stats(
            active=self.active, reason="this is a fake", policy="lrfu:16", fetch_ms=1.5 if self.active else None, prompt=prompt,
            unused_steps=self.unused_steps, prefetched=self.prefetched,
            **{name: getattr(decode, name) for name in PhaseStats.__dataclass_fields__},
        )  # fmt: skip


def phase(tokens: int) -> PhaseStats:
    layer = LayerStats(HITS * tokens, MISSES * tokens, 0, MISSES * tokens * SPAN, 8, 32)
    return PhaseStats(tokens, layer.hits, layer.misses, 0, layer.bytes_fetched, layer.hit_rate, (layer,))


def fake_engine(
    text: str = " and so on", *, n_ctx: int = 2048, template: bool = True, tokenizer: bool = True, prompt_s: float = 1.0, step_s: float = 0.02
) -> Engine:  # fmt: skip
    """An engine with the demo model's tokenizer that writes `text` over and over."""
    with open_gguf(resolve("demo")) as file:
        metadata = file.metadata
        real = Tokenizer.from_metadata(metadata)
        source = default_template(metadata)
        config = replace(model_config(metadata))
    words = (
        real if tokenizer else Tokenizer.from_metadata({"general.architecture": "x", "x.vocab_size": config.n_vocab})
    )
    n = config.n_layers
    shape = CacheShape((256,) * n, (config.n_experts,) * n, (8,) * n, config.n_picks, MAX_ROWS)
    runner = FakeRunner(real.encode(text, add_special=False), config.n_vocab, Clock(), prompt_s, step_s, shape)
    plan = MemoryPlan((MemoryRow("weights", "host", 1 << 20, "all of them"),), (8,) * config.n_layers)
    return Engine(
        runner, config, words, n_ctx=n_ctx, template=ChatTemplate(source) if template else None, memory=plan, notes=("a note",)
    )  # fmt: skip
