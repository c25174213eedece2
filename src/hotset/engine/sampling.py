"""Draw one token from logits, in llama.cpp's order: mask, bias, penalties, top-k, top-p, min-p, temperature, draw.

The reference of kernels/sampling.py, to the last token: float32 up to the weights, integers from there on (kernels/weights.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotset.engine.philox import uniform
from hotset.errors import HotsetError, InputError
from hotset.kernels.token_mask import unpack
from hotset.kernels.weights import MAX_VOCAB, WEIGHT_BITS, weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.config import SamplingParams
    from hotset.engine.runner import Drawing
    from hotset.kernels.token_mask import Words

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]


def sample(
    logits: Logits,
    params: SamplingParams,
    recent_tokens: Sequence[int],
    seed: int,
    position: int,
    mask: Words | None = None,
) -> int:
    """Draw the token at `position` from its logits float32 [n_vocab] and the tokens before it (the last `repeat_last_n` will do).

    `mask` says which tokens are allowed, as in kernels/token_mask.py; None allows all.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities do what they should
        adjusted = adjust(logits, params, recent_tokens, mask)
        if params.is_greedy:
            return int(adjusted.argmax())
        ids = top_k(adjusted, params.top_k)
        ordered = adjusted[ids]
        n = count_kept(ordered, params)
        return int(ids[draw(ordered[:n], params.temperature, uniform(seed, position))])


def draw_token(logits: Logits, drawing: Drawing, tokens: Sequence[int], n_prompt: int) -> int:
    """Draw the token after `tokens`, of which the first `n_prompt` are the prompt."""
    mask = drawing.mask(tokens[n_prompt:]) if drawing.mask else None
    return sample(logits, drawing.params, tokens, drawing.seed, len(tokens), mask)


def adjust(logits: Logits, params: SamplingParams, recent_tokens: Sequence[int], mask: Words | None = None) -> Logits:
    """Logits float32 [n_vocab] after mask, bias and penalties; NaN, where a damaged model gives one, counts as -inf, +inf as the largest float32."""
    if not 0 < len(logits) <= MAX_VOCAB:
        raise InputError(f"{len(logits)} logits; between 1 and {MAX_VOCAB} can be drawn from")
    adjusted = np.nan_to_num(np.asarray(logits, np.float32), nan=-np.inf, neginf=-np.inf)
    if mask is not None:
        adjusted[~unpack(mask, len(logits))] = -np.inf
    _add_bias(adjusted, params)
    _punish(adjusted, params, recent_tokens)
    if adjusted.max() == -np.inf:
        n_nan = int(np.isnan(logits).sum())
        raise no_token(f"of {len(logits)} logits {n_nan} are NaN and none of the rest is allowed")
    return adjusted


def no_token(problem: str) -> HotsetError:
    """Make the error of a step that leaves nothing to draw; the device reports it as a flag."""
    return HotsetError(
        f"no token can be drawn: {problem}; check the model file, or forbid fewer tokens (logit_bias, mask)"
    )


def _add_bias(logits: Logits, params: SamplingParams) -> None:
    for token, bias in params.logit_bias.items():
        if token >= len(logits):
            raise InputError(f"logit_bias holds the token id {token}; ids of this model go from 0 to {len(logits) - 1}")
        logits[token] += np.float32(bias)


def _punish(logits: Logits, params: SamplingParams, recent_tokens: Sequence[int]) -> None:
    window = np.asarray(recent_tokens[max(0, len(recent_tokens) - params.repeat_last_n) :], np.int64)
    ids, counts = np.unique(window[(window >= 0) & (window < len(logits))], return_counts=True)
    x = logits[ids]
    repeat = np.float32(params.repeat_penalty)
    penalty = counts.astype(np.float32) * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty)
    logits[ids] = np.where(x > 0, x / repeat, x * repeat) - penalty


def top_k(logits: Logits, k: int) -> Ids:
    """Find the ids of the k largest logits (0: of all), largest first, ties to the lowest id."""
    n = len(logits)
    if not 0 < k < n:
        return np.argsort(-logits, kind="stable")
    border = np.partition(logits, n - k)[n - k]
    ids = np.flatnonzero(logits >= border)
    return ids[np.argsort(-logits[ids], kind="stable")[:k]]


def count_kept(ordered: Logits, params: SamplingParams) -> int:
    """How many of `ordered` (largest first) top-p and min-p leave: at least one."""
    w = weights(less_largest(ordered))
    n = len(w)
    if params.top_p < 1:
        reached = np.cumsum(w)
        threshold = np.float64(np.float32(params.top_p)) * np.float64(reached[-1])
        n = min(n, 1 + int((reached < threshold).sum()))
    return int((w[:n] >= np.float64(np.float32(params.min_p)) * 2.0**WEIGHT_BITS).sum())


def draw(ordered: Logits, temperature: float, u: np.float32) -> int:
    """Find the index where the running sum of the weights at `temperature` first exceeds u times the whole."""
    reached = np.cumsum(weights(less_largest(ordered) / np.float32(temperature)))
    target = np.floor(np.float64(u) * np.float64(reached[-1]))
    return int((reached <= target).sum())


def less_largest(ordered: Logits) -> Logits:
    # Equal infinities are equally likely, not NaN.
    return np.where(ordered == ordered[0], np.float32(0), ordered - ordered[0])
