"""Picks that take the router's place in a measurement: recorded ones, or the two extremes of locality."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import InputError
from hotset.experts.trace import Trace

if TYPE_CHECKING:
    from hotset.model.config import ModelConfig

# So many tokens of random picks before they begin again: more than any cache remembers.
RANDOM_TOKENS = 4096
# Every repetition begins with another answer, so that none finds what the one before it left.
ANSWER_TOKENS = 256
RANDOM, REPEAT = "random", "repeat"


def routing_trace(source: str, config: ModelConfig) -> Trace:
    """Picks for a model: "random" (nothing to cache), "repeat" (the same picks for every token), or a trace of the model's own counts."""
    if not config.expert_layers:
        raise InputError(f"--routing {source}: {config.name} is a dense model, which picks no experts; leave it out")
    if source in (RANDOM, REPEAT):
        return made_trace(RANDOM_TOKENS if source == RANDOM else 1, config)
    trace = Trace.read(Path(source).expanduser())
    found, needed = (
        (trace.n_layers, trace.n_experts, trace.k),
        (len(config.expert_layers), config.n_experts, config.n_picks),
    )
    if found != needed:
        raise InputError(
            f"--routing {source}: the trace has {counts_text(found)}, the model {config.name} has {counts_text(needed)}; "
            "give a trace of the model's counts, random or repeat"
        )
    if not trace.n_tokens:
        raise InputError(f"--routing {source}: the trace holds no tokens; give another")
    return trace


def counts_text(counts: tuple[int, int, int]) -> str:
    """As in "48 layers of 128 experts, 8 picked"."""
    layers, experts, picks = counts
    return f"{layers} layers of {experts} experts, {picks} picked"


def made_trace(n_tokens: int, config: ModelConfig) -> Trace:
    """Picks at random, the same ones for the same counts."""
    rng = np.random.default_rng(0)
    shape = (n_tokens, len(config.expert_layers), config.n_experts)
    picks = np.argsort(rng.random(shape, np.float32), axis=-1)[..., : config.n_picks]
    answers = np.append(np.arange(0, n_tokens, ANSWER_TOKENS), n_tokens)
    return Trace(picks.astype(np.int16), answers, config.n_experts)
