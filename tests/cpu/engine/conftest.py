"""Loaded models, shared by all tests of the engine; tests that look at counts load their own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hotset

if TYPE_CHECKING:
    from collections.abc import Callable

    from hotset.engine.engine import Engine


@pytest.fixture(scope="session")
def demo() -> Engine:
    return hotset.load("demo", device="cpu")


@pytest.fixture(scope="session")
def model_of(shared, demo) -> Callable[[str], Engine]:
    """The models that goldens exist for, by name."""

    @cache
    def load(name: str) -> Engine:
        return demo if name == "demo" else hotset.load(shared / "models" / f"{name}-moe-Q4_K_M.gguf", device="cpu")

    return load


@pytest.fixture
def fresh() -> Callable[..., Engine]:
    """The demo model, loaded with options of the test's own."""
    return lambda **options: hotset.load("demo", device="cpu", **options)


@pytest.fixture(scope="session")
def some_tokens() -> Callable[[int], list[int]]:
    """So many token ids of the demo model, without end tokens; the same ones for the same n and seed."""
    return lambda n, seed=0: np.random.default_rng(seed).integers(3, 4096, n).tolist()
