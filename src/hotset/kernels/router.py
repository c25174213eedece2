"""The experts of each row: the k best of its router logits, and their weights.

picks = top-k of logits (or of scores + bias), ties to the lowest expert; weights = scores[picks] (/ their sum) * scale
scores = softmax(logits) or sigmoid(logits); OF_PICKS takes the softmax over the picks alone; of GROUPS only the best USED are picked from

`model/routing.py` holds the rule and the reference. Everything is float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.kernels.aot import CompileCase
from hotset.kernels.counts import next_power_of_2
from hotset.quant.triton import jit, tl

if TYPE_CHECKING:
    import torch

    from hotset.model.routing import RouterRule


# Groups are neighbours; one is worth the sum of its SUMMED best, ties to the lowest.
@jit
def in_best_groups(
    judged: tl.tensor,  # float32 [E_PAD]
    e: tl.tensor,  # [E_PAD]
    free: tl.tensor,  # [E_PAD]
    E_PAD: tl.constexpr,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    USED: tl.constexpr,
    SUMMED: tl.constexpr,
) -> tl.tensor:
    worth = tl.full([E_PAD], float("-inf"), tl.float32)  # of every expert's group
    for g in tl.static_range(GROUPS):
        left = free & (e // SIZE == g)
        total = 0.0
        for _ in tl.static_range(SUMMED):
            best = tl.max(tl.where(left, judged, float("-inf")), 0)
            total += best
            left = left & (e != tl.min(tl.where(left & (judged == best), e, E_PAD), 0))
        worth = tl.where(e // SIZE == g, total, worth)
    used = e < 0
    for _ in tl.static_range(USED):
        best = tl.max(tl.where(free & ~used, worth, float("-inf")), 0)
        first = tl.min(tl.where(free & ~used & (worth == best), e, E_PAD), 0)
        used = used | (e // SIZE == first // SIZE)
    return used


# One program per row. Without a bias the logits themselves are ranked, as in the reference.
@jit
def router_kernel(
    logits: tl.tensor,  # float32 [m, stride]
    bias: tl.tensor,  # float32 [N_EXPERTS]
    picks: tl.tensor,  # int32 [m, K]
    weights: tl.tensor,  # float32 [m, K]
    stride: tl.tensor,
    scale: tl.tensor,
    N_EXPERTS: tl.constexpr,
    E_PAD: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    SIGMOID: tl.constexpr,
    OF_PICKS: tl.constexpr,
    BIAS: tl.constexpr,
    RENORMALISE: tl.constexpr,
    GROUPS: tl.constexpr,
    USED: tl.constexpr,
    SUMMED: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    e = tl.arange(0, E_PAD)
    j = tl.arange(0, K_PAD)
    free = e < N_EXPERTS
    x = tl.load(logits + row * stride + e, mask=free, other=float("-inf"))  # [E_PAD]
    if SIGMOID:
        scores = 1 / (1 + tl.exp(-x))
    else:
        top = tl.max(tl.where(x == x, x, float("-inf")), 0)  # noqa: PLR0124
        scores = tl.exp(tl.where(x == top, 0.0, x - top))
        scores = tl.where(free, scores, 0.0)
        scores /= tl.sum(scores, 0)
    ranked = scores + tl.load(bias + e, mask=free, other=0.0) if BIAS else x
    # NaN ranks last: a damaged model must not send a pick out of range. Its weight stays NaN and shows.
    ranked = tl.where(ranked == ranked, ranked, float("-inf"))  # noqa: PLR0124

    if USED < GROUPS:
        judged = ranked if BIAS else tl.where(scores == scores, scores, float("-inf"))  # noqa: PLR0124
        free = free & in_best_groups(judged, e, free, E_PAD, N_EXPERTS // GROUPS, GROUPS, USED, SUMMED)
    chosen = tl.zeros([K_PAD], tl.int32)
    weight = tl.zeros([K_PAD], tl.float32)
    for i in tl.static_range(K):
        best = tl.max(tl.where(free, ranked, float("-inf")), 0)
        pick = tl.min(tl.where(free & (ranked == best), e, E_PAD), 0)
        score = tl.sum(tl.where(e == pick, x if OF_PICKS else scores, 0.0), 0)
        chosen = tl.where(j == i, pick, chosen)
        weight = tl.where(j == i, score, weight)
        free = free & (e != pick)
    if OF_PICKS:
        best = tl.max(tl.where(j < K, weight, float("-inf")), 0)
        weight = tl.where(j < K, tl.exp(weight - best), 0.0)
        weight /= tl.sum(weight, 0)
    if RENORMALISE:
        total = tl.sum(weight, 0)
        weight /= tl.where(total == 0, 1.0, total)
    tl.store(picks + row * K + j, chosen, mask=j < K)
    tl.store(weights + row * K + j, weight * scale, mask=j < K)


def route(
    logits: torch.Tensor, rule: RouterRule, bias: torch.Tensor | None, picks: torch.Tensor, weights: torch.Tensor
) -> None:
    """Write picks int32 and weights float32 [m, k], best first, from logits float32 [m, >= n_experts] and a bias [n_experts] or none."""
    m, k = logits.shape[0], rule.n_picks
    assert picks.shape == weights.shape == (m, k)
    assert picks.is_contiguous()
    assert weights.is_contiguous()
    assert logits.shape[1] >= rule.n_experts
    assert logits.stride(1) == 1
    router_kernel[(m,)](
        logits,
        logits if bias is None else bias,
        picks,
        weights,
        logits.stride(0),
        rule.scale,
        N_EXPERTS=rule.n_experts,
        E_PAD=next_power_of_2(rule.n_experts),
        K=k,
        K_PAD=next_power_of_2(k),
        SIGMOID=rule.scoring == "sigmoid",
        OF_PICKS=rule.scoring == "softmax of picks",
        BIAS=bias is not None,
        RENORMALISE=rule.renormalise,
        GROUPS=rule.n_groups,
        USED=rule.n_groups_used,
        SUMMED=rule.n_summed,
        num_warps=1,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"logits": "*fp32", "bias": "*fp32", "picks": "*i32", "weights": "*fp32", "stride": "i32", "scale": "fp32"}
    cases = []
    for n, k, sigmoid, bias, groups in ((128, 8, False, False, 1), (60, 4, False, False, 1), (256, 8, True, True, 8)):
        constants = {
            "N_EXPERTS": n,
            "E_PAD": next_power_of_2(n),
            "K": k,
            "K_PAD": next_power_of_2(k),
            "SIGMOID": sigmoid,
            "OF_PICKS": n == 60,
            "BIAS": bias,
            "RENORMALISE": True,
            "GROUPS": groups,
            "USED": max(1, groups // 2),
            "SUMMED": 2 if sigmoid else 1,
        }
        cases.append(CompileCase(f"router {n}", router_kernel, types, constants, 1, fp_fusion=True))
    return cases
