"""The rows that one forward pass computes: which token, where, of which sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotset.kernels.rows import BEGINS, REAL

# Rows of one request of the expert cache: one set of GPU kernels serves 1 to 8, and prompts that go through them do so eight at a time.
MAX_ROWS = 8


@dataclass(frozen=True, eq=False)
class Batch:
    """`tokens`, `positions`, `sequences` int64 [m]; `row_mask` int32 [m] as in kernels/rows.py; `wanted` int64 [n] are the rows whose logits are asked for."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    sequences: NDArray[np.int64]
    row_mask: NDArray[np.int32]
    wanted: NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        return self.tokens.size


def prompt_batch(
    tokens: Sequence[int], start: int, *, sequence: int = 0, wanted: Sequence[int] | NDArray[np.int64] = ()
) -> Batch:
    """Successive tokens of one sequence, the first at position `start`."""
    n = len(tokens)
    return Batch(
        tokens=np.asarray(tokens, np.int64),
        positions=np.arange(start, start + n, dtype=np.int64),
        sequences=np.full(n, sequence, np.int64),
        row_mask=np.full(n, REAL, np.int32),
        wanted=np.asarray(wanted, np.int64),
    )


def step_batch(
    tokens: Sequence[int],
    positions: Sequence[int],
    sequences: Sequence[int] | None = None,
    begins: Sequence[bool] | None = None,
) -> Batch:
    """One token of each of several sequences, and whether it begins an answer; the logits of all are wanted."""
    m = len(tokens)
    return Batch(
        tokens=np.asarray(tokens, np.int64),
        positions=np.asarray(positions, np.int64),
        sequences=np.arange(m, dtype=np.int64) if sequences is None else np.asarray(sequences, np.int64),
        row_mask=np.where(np.zeros(m, np.bool_) if begins is None else begins, BEGINS, REAL).astype(np.int32),
        wanted=np.arange(m, dtype=np.int64),
    )
