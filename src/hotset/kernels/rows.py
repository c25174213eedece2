"""The rows of one step: what tells the kernels which sequence and position each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# What `row_mask` says of a row. A row begins an answer where it is its sequence's first decode step after a prompt; for all kernels but the lookup it is
# a row like any other.
PADDING, REAL, BEGINS = range(3)
# A kernel's arguments that are parts of a larger table and begin anywhere in it: to specialise would compile variants while somebody waits.
ROW_TABLES = ("positions", "seqs", "row_mask")


@dataclass(frozen=True)
class Rows:
    """int32 [m] each, on the device. Rows may be one token of several sequences, or successive tokens of one.

    `positions` is where each row's token stands in its sequence, `seqs` which of the KV cache's sequences that is; both are valid in
    padded rows too, where `row_mask` is PADDING.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    seqs: torch.Tensor
    row_mask: torch.Tensor

    def __len__(self) -> int:
        n: int = self.tokens.shape[0]  # len() of a tensor is Python code
        return n
