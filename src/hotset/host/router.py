"""Routing of rows: the k best router logits of each and their weights, in plain loops; model/routing.py has the rule and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotset.host.compile import compiled

SOFTMAX, SIGMOID, SOFTMAX_OF_PICKS = range(3)


@compiled(inline=True)
def _softmax(x: Any, scores: Any) -> None:
    one, top, whole = np.float32(1), np.float32(-np.inf), np.float32(0)
    for e in range(len(x)):
        top = max(top, x[e])
    for e in range(len(x)):
        scores[e] = one if x[e] == top else np.exp(x[e] - top)
        whole += scores[e]
    for e in range(len(x)):
        scores[e] /= whole


@compiled(inline=True)
def _score(x: Any, scoring: int, scores: Any) -> None:
    if scoring == SIGMOID:
        for e in range(len(x)):
            scores[e] = np.float32(1) / (np.float32(1) + np.exp(-x[e]))
    else:
        _softmax(x, scores)


@compiled(inline=True)
def _best(ranked: Any, taken: Any) -> int:
    """The best that is not taken, ties to the lowest; what is no number ranks last."""
    best, best_rank = -1, np.float32(0)
    for e in range(len(ranked)):
        rank = np.float32(-np.inf) if np.isnan(ranked[e]) else ranked[e]
        if not taken[e] and (best < 0 or rank > best_rank):
            best, best_rank = e, rank
    return best


@compiled(inline=True)
def _leave_groups_out(judged: Any, ranked: Any, n_groups: int, n_used: int, n_summed: int) -> None:
    """Minus infinity into `ranked` for experts outside the best groups: those whose `n_summed` best of `judged` sum highest."""
    size = len(ranked) // n_groups
    worth = np.empty(n_groups, np.float32)
    for g in range(n_groups):
        inside = np.sort(judged[g * size : (g + 1) * size])
        worth[g] = np.float32(0)
        for i in range(size - n_summed, size):
            worth[g] += inside[i]
    used = np.zeros(n_groups, np.bool_)
    for _ in range(n_used):
        used[_best(worth, used)] = True
    for g in range(n_groups):
        if not used[g]:
            ranked[g * size : (g + 1) * size] = np.float32(-np.inf)


@compiled()
def route_rows(
    logits: Any, bias: Any, scoring: int, renormalise: bool, scale: float, groups: tuple[int, int, int], picks: Any, weights: Any, n: int
) -> None:  # fmt: skip
    """Logits float32 [m, >= n], a selection bias [n] or [0], groups (n, used, summed) -> picks int32 and weights float32 [m, k]."""
    scores = np.empty(n, np.float32)
    ranked = np.empty(n, np.float32)
    k = picks.shape[1]
    for r in range(len(logits)):
        row = logits[r, :n]
        _score(row, scoring, scores)
        for e in range(n):
            ranked[e] = scores[e] + bias[e] if bias.size else row[e]
        if groups[1] < groups[0]:
            _leave_groups_out(ranked if bias.size else scores, ranked, groups[0], groups[1], groups[2])
        taken = np.zeros(n, np.bool_)
        for j in range(k):
            best = _best(ranked, taken)
            taken[best] = True
            picks[r, j] = best
            weights[r, j] = row[best] if scoring == SOFTMAX_OF_PICKS else scores[best]
        if scoring == SOFTMAX_OF_PICKS:
            _softmax(weights[r].copy(), weights[r])
        total = np.float32(0)
        for j in range(k):
            total += weights[r, j]
        for j in range(k):
            share = weights[r, j] / total if renormalise and total != 0 else weights[r, j]
            weights[r, j] = share * np.float32(scale)


@compiled()
def by_expert(picks: Any, n_experts: int) -> Any:
    """Flat picks [pairs] -> experts that occur (ascending), where each one's pairs begin (and the end), pairs in that order."""
    counts = np.zeros(n_experts + 1, np.int64)
    for e in picks:
        counts[e + 1] += 1
    starts = np.cumsum(counts)
    pairs = np.empty(picks.size, np.int64)
    place = starts.copy()
    for i in range(picks.size):
        pairs[place[picks[i]]] = i
        place[picks[i]] += 1
    experts = np.nonzero(counts[1:])[0]
    return experts, np.append(starts[experts], picks.size), pairs


@compiled()
def combine(z: Any, weights: Any, n: int) -> Any:
    """Rows of pairs [m k, .] and weights [m, k] -> [m, n], summed in the order of picks."""
    m, k = weights.shape
    out = np.zeros((m, n), np.float32)
    for r in range(m):
        for j in range(k):
            for i in range(n):
                out[r, i] += weights[r, j] * z[r * k + j, i]
    return out
