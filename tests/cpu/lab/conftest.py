from __future__ import annotations

import numpy as np
import pytest

from hotset.experts.trace import Trace


@pytest.fixture(scope="session")
def made_up():
    """A trace with some locality: answers of uneven length, popular experts, picks that repeat."""

    def make(seed, n_tokens=300, n_layers=2, n_experts=12, k=3, span_bytes=None):
        rng = np.random.default_rng(seed)
        popular = rng.random((n_layers, n_experts)) ** 2 + 0.02
        experts = np.empty((n_tokens, n_layers, k), np.uint8)
        for t in range(n_tokens):
            for layer in range(n_layers):
                weights = popular[layer].copy()
                if t:
                    weights[experts[t - 1, layer]] += 0.5
                experts[t, layer] = rng.choice(n_experts, k, replace=False, p=weights / weights.sum())
        offsets = np.array([0, n_tokens // 5, n_tokens // 2, n_tokens])
        return Trace(experts, offsets, n_experts, span_bytes)

    return make


@pytest.fixture(scope="session")
def real(shared):
    """The beginnings of the recorded traces."""

    def read(name, n_tokens):
        return Trace.read(shared / "traces" / f"{name}.decode.npz").first(n_tokens)

    return read
