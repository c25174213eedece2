"""What a warm start, and slots dealt by earlier picks, gain on recorded routing; needs no GPU.

    python benchmarks/warm_traces.py gpt-oss-20b.decode.npz olmoe-1b-7b.decode.npz

Of each trace every second answer is learned from; the others are measured. First table: hit rate of the first tokens of an answer on a
cache that begins empty, on one that begins with the hottest experts, and of the rest of those answers. Second table: hit rate of all
their tokens with equal slots, and with slots dealt by the last picks that were learned, as `--slots-from-profile` does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotset.engine.warm_start import sampled_curves
from hotset.experts.heat import MAX_PICKS, Heat, first_scores, shares
from hotset.experts.layer_state import LayerState
from hotset.experts.policy import Policy
from hotset.experts.request import compiled_request
from hotset.experts.simulate import simulate
from hotset.experts.trace import Trace
from hotset.lab.pools import deal_slots

FIRST = 64
POLICY = Policy()
FRACTIONS = (0.125, 0.25, 0.375, 0.5)
# Answers learned from and measured, and tokens of the second table: more would not change the picture.
N_ANSWERS, N_TOKENS = 60, 20_000


def halves(trace: Trace) -> list[Trace]:
    """Answers with even numbers, and those with odd ones."""
    answers = [trace.experts[a:b] for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]
    parts = (answers[0::2], answers[1::2])
    return [Trace(np.concatenate(p), np.cumsum([0, *map(len, p)]), trace.n_experts) for p in parts]


def new_state(trace: Trace, n_slots: int) -> LayerState:
    return LayerState(POLICY, trace.n_experts, n_slots, 1, compiled_request())


def play(state: LayerState, picks: NDArray[np.int16]) -> NDArray[np.int64]:
    """Hits and misses of some tokens [tokens, k]."""
    counts = np.zeros(2, np.int64)
    for row in picks.astype(np.int32):
        decision = state.request(row[None])
        counts += (decision.hits, decision.misses)
    return counts


def answers_of(trace: Trace) -> list[NDArray[np.int16]]:
    """Some answers from all over the trace that are longer than what is measured first."""
    found = [trace.experts[a:b] for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True) if b - a > FIRST]
    return found[:: max(1, len(found) // N_ANSWERS)]


def learned(trace: Trace) -> Heat:
    """The heat that answers leave, as the engine notes it at each one's end."""
    heat = Heat.empty(trace.n_layers, trace.n_experts)
    for answer in answers_of(trace):
        states = [new_state(trace, 1) for _ in range(trace.n_layers)]
        for layer, state in enumerate(states):
            play(state, answer[:, layer])
        heat.note(shares(POLICY, [s.scores for s in states], np.full(trace.n_layers, len(answer))))
    return heat


def first_tokens(trace: Trace, heat: Heat, n_slots: int) -> tuple[float, float, float]:
    """Hit rates of the first tokens cold and warm, and of the rest (every second layer is measured)."""
    cold, warm, rest = np.zeros((3, 2), np.int64)
    for answer in answers_of(trace):
        for layer in range(0, trace.n_layers, 2):
            state = new_state(trace, n_slots)
            cold += play(state, answer[:FIRST, layer])
            rest += play(state, answer[FIRST:, layer])
            state = new_state(trace, n_slots)
            state.seed(heat.hottest(layer, n_slots))
            state.scores[:] = first_scores(POLICY, heat.share[layer], trace.k)
            warm += play(state, answer[:FIRST, layer])
    return cold[0] / cold.sum(), warm[0] / warm.sum(), rest[0] / rest.sum()


def hit_rate(trace: Trace, n_slots: tuple[int, ...]) -> float:
    return simulate(trace, list(n_slots), POLICY).hit_rate or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    for path in parser.parse_args().traces:
        seen, other = halves(Trace.read(path))
        heat, name = learned(seen), path.name.split(".")[0]
        curves = sampled_curves(seen.first(MAX_PICKS))
        for f in FRACTIONS:
            n = int(f * seen.n_experts)
            equal = (n,) * seen.n_layers
            dealt = deal_slots(curves, (1,) * seen.n_layers, n)
            cold, warm, rest = first_tokens(other, heat, n)
            part = other.first(N_TOKENS)
            print(
                f"| {name} | {100 * f:g} % | {cold:.3f} | {warm:.3f} | {rest:.3f} | {hit_rate(part, equal):.4f} | {hit_rate(part, dealt):.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
