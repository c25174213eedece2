"""How fast this machine reads memory, plainly: the speed that decoding on the CPU cannot pass."""

from __future__ import annotations

import time
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from hotset.host.compile import compiled

# Far larger than any CPU's last cache.
BUFFER_BYTES = 1 << 30
# Each task reads 1 MiB: small enough to share out evenly, large enough to stream.
TASK_WORDS = 1 << 17
REPEATS = 5


@compiled(parallel=True)
def sum_words(words: Any) -> int:
    """The sum of int64 [n]: one add per 8 bytes, so that reading is all that takes time."""
    total = 0
    for task in numba.prange((words.size + TASK_WORDS - 1) // TASK_WORDS):
        part = 0
        for i in range(task * TASK_WORDS, min(words.size, (task + 1) * TASK_WORDS)):
            part += words[i]
        total += part
    return total


def buffer(n_bytes: int) -> NDArray[np.int64]:
    """Memory of at most `n_bytes`, and a quarter of what is free, with every page present."""
    from hotset.host.ram import available_bytes

    return np.ones(max(1, min(n_bytes, available_bytes() // 4) // 8), np.int64)


def read_rate(words: NDArray[np.int64], threads: int, repeats: int = REPEATS) -> float:
    """Bytes per second of the fastest of some readings of `words` with so many threads."""
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        sum_words(words[: 2 * TASK_WORDS])
        best = 0.0
        for _ in range(repeats):
            began = time.perf_counter()
            sum_words(words)
            best = max(best, words.nbytes / (time.perf_counter() - began))
        return best
    finally:
        numba.set_num_threads(before)
