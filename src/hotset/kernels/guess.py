"""Which experts a layer is likely to miss, before its router has decided.

Two forecasts are kept, and in each layer the one counts that was right more often of late:

    odds[l, p, e]   how often a token whose layer l - 1 picked expert p picked expert e in layer l, recent tokens counting more;
                    the last line of p is any token's. A token's picks p_1 .. p_k speak for e as naive Bayes has it, the share of
                    what is common to them softened, for they are not independent:
                    prod_i (odds[l, p_i, e] + FLOOR) / (odds[l, any, e] + FLOOR) ** (COMMON * (k - 1))
    likely          what the next layer's router makes of this layer's input, for a layer adds little to it (the idea of Eliseev and
                    Mazur, "Fast Inference of Mixture-of-Experts Language Models with Offloading", 2023)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import next_power_of_2
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

# Guess areas: the bus rarely has the time for more between two layers.
N_GUESSES = 4
# `picked` of the lookup marks a pick that was missed with this bit.
MISSED = 1 << 16
# By odds and by the router: the columns of `right` and `guessed`.
N_FORECASTS = 2
# Fitted to the recorded traces: anything near them does as well (docs/log.md).
FLOOR = 1 / 32
COMMON = 0.7
# Layers whose first guess is right less often bring nothing ahead: a wrong one holds the fetch up by 3 us, a right one saves it some 50.
MIN_RIGHT = 0.1


@dataclass(frozen=True, eq=False)
class GuessList:
    """What was guessed for one layer, and what came of it."""

    source: torch.Tensor  # int64 [N_GUESSES], addresses in the bank; 0 for none
    area: torch.Tensor  # int64 [N_GUESSES], addresses of the guess areas
    calls: torch.Tensor  # int32 [1], lookups of the layer so far
    done: torch.Tensor  # int32 [programs], blocks that each program of the copy brought


@dataclass(frozen=True, eq=False)
class Guesses:
    """What is known of all layers, and what was guessed for the layer to come. A layer is guessed while the one before may still fetch: their lists take
    turns.
    """

    odds: torch.Tensor  # float16 [layers, E_PAD + 1, E_PAD]: the only part that is large
    right: torch.Tensor  # float32 [layers, 2], how often each forecast's first guess was right of late
    guessed: torch.Tensor  # int32 [layers, 2], each forecast's first guess, -1 for none
    counts: torch.Tensor  # int64 [layers, 2], bytes that came ahead, and those of them that were needed
    lists: tuple[GuessList, GuessList]

    @classmethod
    def empty(cls, n_layers: int, padded: int, n_programs: int, device: torch.device | str) -> Guesses:
        """Nothing guessed and nothing known yet, of layers with up to `padded` experts, a power of two, for a copy of so many programs."""
        import torch  # the kernels' module loads without it

        def zeros(*size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        def empty_list() -> GuessList:
            return GuessList(
                source=zeros(N_GUESSES, dtype=torch.int64),
                area=zeros(N_GUESSES, dtype=torch.int64),
                calls=zeros(1, dtype=torch.int32),
                done=zeros(n_programs, dtype=torch.int32),
            )

        return cls(
            odds=zeros(n_layers, padded + 1, padded, dtype=torch.float16),
            right=zeros(n_layers, N_FORECASTS, dtype=torch.float32),
            guessed=zeros(n_layers, N_FORECASTS, dtype=torch.int32).fill_(-1),
            counts=zeros(n_layers, 2, dtype=torch.int64),
            lists=(empty_list(), empty_list()),
        )

    def of(self, layer: int) -> GuessList:
        """The list that is `layer`'s from its guess to its fetch."""
        return self.lists[layer % 2]


@jit
def note_call(calls: tl.tensor, PREFETCH: tl.constexpr) -> None:
    """Say that the lookup of a layer begins: what is brought ahead of its picks stops."""
    if PREFETCH:
        tl.atomic_add(calls, 1)


@jit
def note_picks(
    picked: tl.tensor,  # int32 [N]
    pick: tl.tensor,
    real: tl.tensor,
    missed: tl.tensor,
    N: tl.constexpr,
    N_PAD: tl.constexpr,
    PREFETCH: tl.constexpr,
    MISSED: tl.constexpr,
) -> None:
    """Keep a lookup's picks [N_PAD], those that were missed with MISSED, -1 where they are not real."""
    if PREFETCH:
        j = tl.arange(0, N_PAD)
        tl.store(picked + j, tl.where(real, tl.where(missed, pick | MISSED, pick), -1), mask=j < N)


# Layers count up: specialising would compile variants.
@jit(do_not_specialize=["layer", "max_picks"])
def guess_kernel(
    picked: tl.tensor,  # int32 [layers, max_picks], -1 in padded rows
    likely: tl.tensor,  # int32 [ROWS, K], best first; any pointer where not LIKELY
    table: tl.tensor,  # int64 [layers, WIDTH], see lookup.TABLE_COLUMNS
    slot_of: tl.tensor,  # int32 [layers, E_PAD]
    calls: tl.tensor,  # int32 [layers]
    odds: tl.tensor,
    right: tl.tensor,
    guessed: tl.tensor,
    source: tl.tensor,
    area: tl.tensor,
    expected: tl.tensor,  # int32 [1]
    layer: tl.tensor,
    max_picks: tl.tensor,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    E_PAD: tl.constexpr,
    N: tl.constexpr,  # guesses, at most N_GUESSES
    N_PAD: tl.constexpr,
    WIDTH: tl.constexpr,
    LIKELY: tl.constexpr,
    MIN: tl.constexpr,
    FLOOR: tl.constexpr,
    COMMON: tl.constexpr,
) -> None:
    tl.store(expected, tl.load(calls + layer))
    row = table + layer * WIDTH
    bank = tl.load(row)
    overflow = tl.load(row + 2)
    span = tl.load(row + 3)
    e = tl.arange(0, E_PAD)
    k = tl.arange(0, K_PAD)
    by_odds = tl.zeros([E_PAD], tl.float32)
    by_router = tl.zeros([E_PAD], tl.float32)
    own = odds + (layer * (E_PAD + 1)).to(tl.int64) * E_PAD + e  # [E_PAD], of pick 0
    common = COMMON * (K - 1) * tl.log2(tl.load(own + E_PAD * E_PAD).to(tl.float32) + FLOOR)
    for i in range(ROWS):
        pick = tl.load(picked + (layer - 1) * max_picks + i * K + k, mask=k < K, other=-1)  # [K_PAD]
        real = pick >= 0
        lines = tl.load(own[None, :] + (pick & 0xFFFF)[:, None] * E_PAD, mask=real[:, None], other=0.0)
        speak = tl.sum(tl.where((k < K)[:, None], tl.log2(lines.to(tl.float32) + FLOOR), 0.0), 0)
        by_odds += tl.where(tl.sum(real.to(tl.int32), 0) > 0, tl.exp2(speak - common), 0.0)
        if LIKELY:
            expert = tl.where(real, tl.load(likely + i * K + k, mask=k < K, other=-1), -1)
            by_router += tl.sum(tl.where(expert[:, None] == e[None, :], (K - k)[:, None].to(tl.float32), 0.0), 0)
    missing = tl.load(slot_of + layer * E_PAD + e) < 0
    by_odds = tl.where(missing, by_odds, 0.0)
    by_router = tl.where(missing, by_router, 0.0)
    tl.store(guessed + layer * 2, tl.where(tl.max(by_odds, 0) > 0, tl.argmax(by_odds, 0), -1))
    tl.store(guessed + layer * 2 + 1, tl.where(tl.max(by_router, 0) > 0, tl.argmax(by_router, 0), -1))
    odds_right = tl.load(right + layer * 2)
    router_right = tl.load(right + layer * 2 + 1)
    score = tl.where(router_right > odds_right, by_router, by_odds)
    sure = tl.maximum(router_right, odds_right) >= MIN
    for g in tl.static_range(N_PAD):
        best = tl.argmax(score, 0)
        tl.store(source + g, tl.where((tl.max(score, 0) > 0) & sure & (g < N), bank + best * span, 0))
        tl.store(area + g, overflow + (max_picks - 1 - g) * span)
        score = tl.where(e == best, 0.0, score)


def guess(
    state: Guesses,
    picked: torch.Tensor,
    likely: torch.Tensor | None,
    table: torch.Tensor,
    slot_of: torch.Tensor,
    calls: torch.Tensor,
    layer: int,
    *,
    n_rows: int,
    k: int,
    n: int,
) -> None:
    """Guess up to `n` experts that `layer` will miss, from what `n_rows` rows picked in the layer before it, and from what its router is likely
    to pick, where that is known; tensors as in guess_kernel.
    """
    assert layer > 0
    assert 1 <= n <= N_GUESSES
    found = state.of(layer)
    guess_kernel[(1,)](
        picked,
        picked if likely is None else likely,
        table,
        slot_of,
        calls,
        state.odds,
        state.right,
        state.guessed,
        found.source,
        found.area,
        found.calls,
        layer,
        picked.shape[1],
        ROWS=n_rows,
        K=k,
        K_PAD=next_power_of_2(k),
        E_PAD=slot_of.shape[1],
        N=n,
        N_PAD=N_GUESSES,
        WIDTH=table.shape[1],
        LIKELY=likely is not None,
        MIN=MIN_RIGHT,
        FLOOR=FLOOR,
        COMMON=COMMON,
        num_warps=4,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("picked", "likely", "slot_of", "calls", "guessed", "expected"), "*i32")
    types |= dict.fromkeys(("table", "source", "area"), "*i64") | {"odds": "*fp16", "right": "*fp32"}
    sizes = {"ROWS": 2, "K": 6, "K_PAD": 8, "E_PAD": 128, "N": 3, "N_PAD": N_GUESSES, "WIDTH": 5}
    return [
        CompileCase(
            name="guess",
            kernel=guess_kernel,
            types=types | dict.fromkeys(("layer", "max_picks"), "i32"),
            constants=sizes | {"LIKELY": True, "MIN": MIN_RIGHT, "FLOOR": FLOOR, "COMMON": COMMON},
        )
    ]
