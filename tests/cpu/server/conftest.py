"""Servers that all tests of an API share: the demo model, and scripted sequences that compute nothing."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

import hotset
from scripted import scripted_engine
from serving_thread import Client, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@cache
def demo_engine():
    # One thread: on a machine that does other work too, two would wait for each other.
    return hotset.load("demo", device="cpu", n_ctx=512, threads=1, n_parallel=4, record_steps=64)


@pytest.fixture(scope="session")
def demo() -> Iterator[Client]:
    with serving(lambda _progress: demo_engine()) as client:
        yield client


@pytest.fixture
def scripted() -> Iterator[Client]:
    """A server of scripted sequences; `client.scheduler.engine.scripted` are they."""
    with serving(lambda _progress: scripted_engine(), n_parallel=2, max_waiting=2) as client:
        yield client


@pytest.fixture(scope="session")
def with_template(shared) -> Callable[[str], Client]:
    """The demo model behind one of the shared templates."""
    open_ones = {}

    def get(name: str) -> Client:
        if name not in open_ones:
            engine = hotset.load("demo", device="cpu", n_ctx=2048, threads=1, n_parallel=2)
            engine.use_template((shared / "vocab/templates" / f"{name}.jinja").read_text())
            manager = serving(lambda _progress: engine, n_parallel=2)
            open_ones[name] = (manager, manager.__enter__())
        return open_ones[name][1]

    yield get
    for manager, _ in open_ones.values():
        manager.__exit__(None, None, None)
