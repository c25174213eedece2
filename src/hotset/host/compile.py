"""Numba as hotset uses it: no fastmath, no GIL, no check for division by zero (it would keep loops from the vector unit), and machine code kept on disk in a folder of its own."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config

from hotset.host.folders import cache_root

# GNU OpenMP lets idle threads spin 300,000 rounds, also where another program needs the core: with one busy core of two the demo model
# fell from 960 to 4 tokens/s. 30,000 rounds (0.15 ms) bridge the gaps between kernels, then threads sleep: 980 and 85 tokens/s. Fewer
# rounds cost more on a quiet machine (1,000: 330 tokens/s). Read once, when OpenMP loads.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")


@cache
def code_cache() -> str:
    """A folder for machine code, named after the sources: Numba does not see an edited intrinsic, so an edit must change the folder."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in ("host", "quant", "experts", "lab", "model", "plan"):
        for source in sorted((package / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    place = cache_root() / "numba" / digest.hexdigest()[:16]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError:  # a read-only home: compile again in each process rather than fail
        return tempfile.mkdtemp(prefix="hotset-numba-")
    return str(place)


def compiled(*, parallel: bool = False, inline: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: njit with hotset's settings. `inline` leaves the function to its callers (no entry of its own on disk)."""

    def decorate(function: Callable[..., Any]) -> Any:
        if inline:
            return numba.njit(nogil=True, boundscheck=False, error_model="numpy")(function)
        if (
            parallel
        ):  # entries on disk are known by name and bytecode: the same source compiled both ways needs two names
            function.__qualname__ += "_parallel"
        with _own_folder():
            return numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy", parallel=parallel)(
                function
            )

    return decorate


def callback(function: Callable[[int], None]) -> Any:
    """`function` of one address compiled for callers that know C alone and hold no GIL: see numba.cfunc; compiles at once."""
    with _own_folder():
        return numba.cfunc(numba.void(numba.int64), cache=True, boundscheck=False, error_model="numpy")(function)


@contextmanager
def _own_folder() -> Iterator[None]:
    """Numba reads the folder when a decorator runs; the user's own setting stands before and after."""
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = code_cache()
    try:
        yield
    finally:
        numba_config.CACHE_DIR = before
