from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from fakes import fake_engine
from hotset.cli import main


class Called(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capsys) -> Callable[..., Called]:
    """Run a command line in this process."""

    def run(*args: str) -> Called:
        capsys.readouterr()
        code = main([str(a) for a in args])
        return Called(code, *capsys.readouterr())

    return run


@pytest.fixture
def loaded(monkeypatch):
    """Make `hotset.load` give a fake engine; returns a function that sets which, and the arguments of the last load."""
    seen = {}

    def give(engine=None, **changes):
        engine = engine or fake_engine(**changes)

        def load(model, **arguments):
            seen.update(arguments, model=model)
            return engine

        monkeypatch.setattr("hotset.engine.loading.load", load)
        engine.load_arguments = seen
        return engine

    return give
