from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

# The first use compiles the host kernels, on a slow machine for minutes.
PATIENCE_S = 600


@pytest.fixture(scope="session")
def hotset() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command `hotset` in a process of its own."""

    def run(*args: str, **settings) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hotset", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **settings)

    return run
