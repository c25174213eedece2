"""What a step teaches about guesses: which experts followed which, and how often each forecast's first guess was right; see guess.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import next_power_of_2
from hotset.kernels.guess import MISSED
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.kernels.guess import Guesses

# How much the last token counts for what followed a pick, for what any token picked, and for how often a layer's first guess was right.
ODDS_RATE = 1 / 16
ANY_RATE = 1 / 64
RIGHT_RATE = 1 / 64


@jit(do_not_specialize=["max_picks"])
def learn_kernel(
    picked: tl.tensor,
    guessed: tl.tensor,
    odds: tl.tensor,
    right: tl.tensor,
    max_picks: tl.tensor,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    E_PAD: tl.constexpr,
    RATE: tl.constexpr,
    ANY_RATE: tl.constexpr,
    RIGHT: tl.constexpr,
    MISSED: tl.constexpr,
) -> None:
    layer = tl.program_id(0) + 1
    e = tl.arange(0, E_PAD)
    k = tl.arange(0, K_PAD)
    by_odds = tl.load(guessed + layer * 2)
    by_router = tl.load(guessed + layer * 2 + 1)
    odds_hits = 0
    router_hits = 0
    real = 0
    own = odds + (layer * (E_PAD + 1)).to(tl.int64) * E_PAD
    for row in range(ROWS):
        at = layer * max_picks + row * K + k
        now = tl.load(picked + at, mask=k < K, other=-1)
        pick = tl.load(picked + at - max_picks, mask=k < K, other=-1)
        real += tl.sum((now >= 0).to(tl.int32), 0)
        odds_hits += tl.sum((now == (by_odds | MISSED)).to(tl.int32), 0)
        router_hits += tl.sum((now == (by_router | MISSED)).to(tl.int32), 0)
        used = tl.sum(((now & 0xFFFF)[:, None] == e[None, :]).to(tl.float32), 0)
        line = own + (pick & 0xFFFF)[:, None] * E_PAD + e[None, :]
        ok = (pick >= 0)[:, None]
        old = tl.load(line, mask=ok, other=0.0).to(tl.float32)
        tl.store(line, old + (used[None, :] - old) * RATE, mask=ok)
        if tl.sum((now >= 0).to(tl.int32), 0) > 0:
            whole = tl.load(own + E_PAD * E_PAD + e).to(tl.float32)
            tl.store(own + E_PAD * E_PAD + e, whole + (used - whole) * ANY_RATE)
        tl.debug_barrier()  # another row may have picked the same expert
    for forecast in tl.static_range(2):
        hits = router_hits if forecast else odds_hits
        if ((by_router if forecast else by_odds) >= 0) & (real > 0):
            at = right + layer * 2 + forecast
            was = tl.load(at)
            tl.store(at, was + (tl.where(hits > 0, 1.0, 0.0) - was) * RIGHT)


def learn(state: Guesses, picked: torch.Tensor, *, n_rows: int, k: int) -> None:
    """After a step: add what its rows picked to the odds, and whether the first guesses were right."""
    n_layers, max_picks = picked.shape
    learn_kernel[(n_layers - 1,)](
        picked,
        state.guessed,
        state.odds,
        state.right,
        max_picks,
        ROWS=n_rows,
        K=k,
        K_PAD=next_power_of_2(k),
        E_PAD=state.odds.shape[2],
        RATE=ODDS_RATE,
        ANY_RATE=ANY_RATE,
        RIGHT=RIGHT_RATE,
        MISSED=MISSED,
        num_warps=4,
        enable_fp_fusion=False,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = dict.fromkeys(("picked", "guessed"), "*i32") | {"odds": "*fp16", "right": "*fp32", "max_picks": "i32"}
    sizes = {"ROWS": 2, "K": 6, "K_PAD": 8, "E_PAD": 128}
    rates = {"RATE": ODDS_RATE, "ANY_RATE": ANY_RATE, "RIGHT": RIGHT_RATE}
    return [CompileCase(name="learn", kernel=learn_kernel, types=types, constants=sizes | rates | {"MISSED": MISSED})]
