"""The experts of each row: the k best of its router logits, and their weights.

picks = top-k of logits (or of scores + bias), ties to the lowest expert; weights = scores[picks] (/ their sum) * scale
scores = softmax(logits) or sigmoid(logits)

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
    BIAS: tl.constexpr,
    RENORMALISE: tl.constexpr,
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

    chosen = tl.zeros([K_PAD], tl.int32)
    weight = tl.zeros([K_PAD], tl.float32)
    for i in tl.static_range(K):
        best = tl.max(tl.where(free, ranked, float("-inf")), 0)
        pick = tl.min(tl.where(free & (ranked == best), e, E_PAD), 0)
        score = tl.sum(tl.where(e == pick, scores, 0.0), 0)
        chosen = tl.where(j == i, pick, chosen)
        weight = tl.where(j == i, score, weight)
        free = free & (e != pick)
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
        BIAS=bias is not None,
        RENORMALISE=rule.renormalise,
        num_warps=1,
    )


def compile_cases() -> list[CompileCase]:
    """List what tests compile ahead of time."""
    types = {"logits": "*fp32", "bias": "*fp32", "picks": "*i32", "weights": "*fp32", "stride": "i32", "scale": "fp32"}
    cases = []
    for n, k, sigmoid, bias in ((128, 8, False, False), (60, 4, False, False), (384, 8, True, True)):
        constants = {
            "N_EXPERTS": n,
            "E_PAD": next_power_of_2(n),
            "K": k,
            "K_PAD": next_power_of_2(k),
            "SIGMOID": sigmoid,
            "BIAS": bias,
            "RENORMALISE": True,
        }
        cases.append(CompileCase(f"router {n}", router_kernel, types, constants, 1, fp_fusion=True))
    return cases
