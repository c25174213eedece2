"""What sampling keeps on the device for every sequence, and the launches of a step; the kernels are in sampling.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from hotset.config import MAX_LOGIT_BIAS, MAX_RECENT
from hotset.errors import InputError
from hotset.kernels.counts import cdiv, next_power_of_2
from hotset.kernels.sampling import (
    BLOCK,
    DRAW_BLOCK,
    EXACT,
    FLOATS,
    INTS,
    PENALTY_BLOCK,
    PENALTY_PROGRAMS,
    bias_kernel,
    block_max_kernel,
    copy_kernel,
    draw_kernel,
    greedy_kernel,
    penalty_kernel,
)
from hotset.kernels.selection import (
    GROUP,
    GROUPS_PER_PROGRAM,
    RANK_BLOCK,
    RANK_PROGRAMS,
    bounds_kernel,
    gather_kernel,
    group_max_kernel,
    is_few,
    rank_kernel,
)
from hotset.kernels.token_mask import checked, n_words
from hotset.kernels.weights import MAX_VOCAB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.config import SamplingParams
    from hotset.kernels.rows import Rows
    from hotset.kernels.token_mask import Words

# The ways of a step: each gives the tokens of the next, which serves more parameters and takes longer.
Way = Literal["greedy", "select", "draw"]
WAYS: tuple[Way, ...] = ("greedy", "select", "draw")
MASKED = INTS.index("masked")
# `done` of a sequence: the last token was one that ends it, or no token could be drawn.
RUNNING, ENDED, NO_TOKEN = 0, 1, 2
# End tokens of a request, stop tokens of its own included; a power of two.
MAX_END = 32


class Sampler:
    """Draws the next token of up to `n_rows` rows; what it keeps of `n_seqs` sequences lies in buffers made once."""

    def __init__(self, n_rows: int, n_seqs: int, n_vocab: int, device: torch.device | str) -> None:
        assert n_vocab <= MAX_VOCAB

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.n_vocab = n_vocab
        self.floats = empty(n_seqs, len(FLOATS), dtype=torch.float32)
        self.ints = empty(n_seqs, len(INTS))
        self.bias_ids = empty(n_seqs, MAX_LOGIT_BIAS)
        self.bias_values = empty(n_seqs, MAX_LOGIT_BIAS, dtype=torch.float32)
        self.recent = empty(n_seqs, MAX_RECENT)
        self.done = empty(n_seqs)
        self.end_ids = torch.full((n_seqs, MAX_END), -1, dtype=torch.int32, device=device)
        self.keys = empty(n_rows, n_vocab, dtype=torch.float32)
        self.ordered = empty(n_rows, n_vocab, dtype=torch.float32)
        self.ids = empty(n_rows, n_vocab, dtype=torch.int64)
        self.block_max = empty(n_rows, cdiv(n_vocab, BLOCK), dtype=torch.float32)
        self.block_id = empty(n_rows, cdiv(n_vocab, BLOCK))
        self.masks = empty(n_seqs, n_words(n_vocab))
        self.group_max = empty(n_rows, cdiv(n_vocab, GROUP), dtype=torch.float32)
        self.largest = empty(n_rows, dtype=torch.float32)
        self.least = empty(n_rows)
        self.least_less = empty(n_rows, dtype=torch.float32)
        self.count = empty(n_rows)
        self.whole = empty(n_rows, dtype=torch.int64)
        self.kept = empty(n_rows, n_vocab, dtype=torch.float32)
        self.kept_ids = empty(n_rows, n_vocab)
        self._ways: list[Way] = ["greedy"] * n_seqs
        self._masked = [False] * n_seqs

    @property
    def way(self) -> Way:
        """The quickest way that serves every sequence."""
        return max(self._ways, key=WAYS.index)

    def step(self, way: Way, logits: torch.Tensor, rows: Rows) -> None:
        """Take each row's next token in this way."""
        {"greedy": self.greedy, "select": self.select, "draw": self.draw}[way](logits, rows)

    def start(
        self, seq: int, params: SamplingParams, seed: int, tokens: Sequence[int], end_ids: Sequence[int] = ()
    ) -> None:
        """Begin a request: `tokens` is the sequence so far, from position 0 on; a token of `end_ids` ends it and makes its row idle.

        Every token is allowed until `set_mask`.
        """
        if len(end_ids) > MAX_END:
            raise InputError(f"{len(end_ids)} tokens that end a text; at most {MAX_END} can be told to the GPU")
        if max(params.logit_bias, default=0) >= self.n_vocab:
            token = max(params.logit_bias)
            raise InputError(
                f"logit_bias holds the token id {token}; ids of this model go from 0 to {self.n_vocab - 1}"
            )
        n_bias = len(params.logit_bias)
        self.floats[seq] = torch.tensor([getattr(params, name) for name in FLOATS], dtype=torch.float32)
        ints = [params.top_k, params.repeat_last_n, seed, seed >> 32, n_bias, params.is_greedy, 0]
        self.ints[seq] = torch.tensor([_as_int32(n) for n in ints], dtype=torch.int32)
        self.bias_ids[seq, :n_bias] = torch.tensor(list(params.logit_bias.keys()), dtype=torch.int32)
        self.bias_values[seq, :n_bias] = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
        ring = torch.full((MAX_RECENT,), -1, dtype=torch.int32)
        first = max(0, len(tokens) - MAX_RECENT)
        ring[torch.arange(first, len(tokens)) % MAX_RECENT] = torch.tensor(list(tokens[first:]), dtype=torch.int32)
        self.recent[seq] = ring
        self.end_ids[seq] = torch.tensor([*end_ids, *[-1] * (MAX_END - len(end_ids))], dtype=torch.int32)
        self.done[seq] = RUNNING
        few = is_few(params, self.group_max.shape[1])
        self._ways[seq] = "greedy" if params.is_greedy else "select" if few else "draw"
        self._masked[seq] = False

    def stop(self, seq: int) -> None:
        """Forget a sequence when choosing the way."""
        self._ways[seq] = "greedy"

    def set_mask(self, seq: int, words: Words | None) -> None:
        """Allow a sequence only the tokens whose bits are 1 (see token_mask.py), or every token, from the next step on."""
        if words is not None:
            self.masks[seq].copy_(torch.from_numpy(checked(words, self.n_vocab)))
        masked = words is not None
        if self._masked[seq] != masked:
            self._masked[seq] = masked
            self.ints[seq, MASKED] = masked

    def greedy(self, logits: torch.Tensor, rows: Rows) -> None:
        """Take each row's most probable token, for steps without a row that draws: one sort less than `draw`, the same tokens."""
        self._adjust(logits, rows)
        n_blocks = self.block_max.shape[1]
        block_max_kernel[(len(rows), n_blocks)](
            self.keys, self.block_max, self.block_id, self.n_vocab, BLOCK=BLOCK, num_warps=4
        )
        greedy_kernel[(len(rows),)](
            self.block_max,
            self.block_id,
            rows.tokens,
            rows.positions,
            rows.seqs,
            rows.row_mask,
            self.recent,
            self.end_ids,
            self.done,
            n_blocks,
            BLOCKS_PAD=next_power_of_2(n_blocks),
            N_END=MAX_END,
            num_warps=4,
        )

    def select(self, logits: torch.Tensor, rows: Rows) -> None:
        """Draw as `draw` does, and the same tokens; quick where few logits can be drawn."""
        self._adjust(logits, rows)
        m, n = len(rows), self.n_vocab
        n_groups = self.group_max.shape[1]
        group_max_kernel[(m, cdiv(n_groups, GROUPS_PER_PROGRAM))](
            self.keys, self.group_max, n, n_groups, GROUP=GROUP, GROUPS=GROUPS_PER_PROGRAM, num_warps=4
        )
        bounds = (self.largest, self.least, self.least_less, self.count, self.whole)
        bounds_kernel[(m,)](
            self.group_max,
            rows.seqs,
            rows.row_mask,
            self.floats,
            self.ints,
            *bounds,
            n_groups,
            PAD=next_power_of_2(n_groups),
            num_warps=8,
        )
        gather_kernel[(m, cdiv(n, BLOCK))](
            self.keys,
            rows.seqs,
            self.floats,
            self.ints,
            *bounds,
            self.kept,
            self.kept_ids,
            n,
            BLOCK=BLOCK,
            num_warps=4,
            **EXACT,
        )
        rank_kernel[(m, RANK_PROGRAMS)](
            self.count, self.kept, self.kept_ids, self.ordered, self.ids, n, BLOCK=RANK_BLOCK, num_warps=4
        )
        self._draw(rows, self.count, self.whole)

    def draw(self, logits: torch.Tensor, rows: Rows) -> None:
        """Draw each row's next token from logits float32 [m, >= n_vocab].

        It replaces the row's token, whose position grows by one; `done` of its sequence becomes ENDED after an end token and
        NO_TOKEN where nothing could be drawn, and stays so until the next `start`.
        """
        self._adjust(logits, rows)
        m = len(rows)
        torch.sort(self.keys[:m], dim=1, descending=True, stable=True, out=(self.ordered[:m], self.ids[:m]))
        self._draw(rows, None, None)

    def _draw(self, rows: Rows, count: torch.Tensor | None, whole: torch.Tensor | None) -> None:
        draw_kernel[(len(rows),)](
            self.ordered,
            self.ids,
            count,
            whole,
            rows.tokens,
            rows.positions,
            rows.seqs,
            rows.row_mask,
            self.floats,
            self.ints,
            self.recent,
            self.end_ids,
            self.done,
            self.n_vocab,
            BLOCK=min(DRAW_BLOCK, next_power_of_2(self.n_vocab)),
            N_END=MAX_END,
            num_warps=8,
            **EXACT,
        )

    def _adjust(self, logits: torch.Tensor, rows: Rows) -> None:
        """Copy the logits that the mask allows, then add biases and penalties to the copy."""
        m, n = len(rows), self.n_vocab
        assert m <= len(self.keys)
        assert logits.shape[0] == m
        assert logits.shape[1] >= n
        assert logits.stride(1) == 1
        copy_kernel[(m, cdiv(n, BLOCK))](
            logits,
            self.keys,
            rows.seqs,
            self.ints,
            self.masks,
            logits.stride(0),
            n,
            self.masks.shape[1],
            BLOCK=BLOCK,
            num_warps=4,
        )
        bias_kernel[(m,)](self.keys, rows.seqs, self.ints, self.bias_ids, self.bias_values, n, num_warps=4)
        penalty_kernel[(m, PENALTY_PROGRAMS)](
            self.keys,
            rows.positions,
            rows.seqs,
            self.floats,
            self.ints,
            self.recent,
            n,
            BLOCK=PENALTY_BLOCK,
            num_warps=4,
            **EXACT,
        )


def _as_int32(n: int) -> int:
    low = int(n) & 0xFFFFFFFF
    return low - (low >> 31 << 32)
