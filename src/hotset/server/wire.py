"""Pieces of OpenAI's answers that several of its APIs share."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotset.engine.job import Token, Usage
    from hotset.text.tokenizer import Tokenizer

# What OpenAI says of a token that cannot come, as JSON has no infinity.
NEVER = -9999.0


def new_id(prefix: str) -> str:
    """A name for an answer."""
    return f"{prefix}-{secrets.token_hex(12)}"


def usage_facts(usages: Sequence[Usage]) -> dict[str, Any]:
    """Tokens of the answers to one request; their prompt counts once."""
    prompt = usages[0].prompt_tokens if usages else 0
    cached = usages[0].cached_tokens if usages else 0
    completion = sum(u.completion_tokens for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(usage: Usage) -> dict[str, Any]:
    """Times and speeds by llama.cpp's names; the first token comes with the prompt."""
    n_prompt, n_decoded = usage.prompt_tokens - usage.cached_tokens, max(usage.completion_tokens - 1, 0)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": n_prompt,
        "prompt_ms": 1e3 * usage.prompt_s,
        "prompt_per_second": n_prompt / usage.prompt_s if usage.prompt_s else 0.0,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": 1e3 * usage.decode_s,
        "predicted_per_second": n_decoded / usage.decode_s if usage.decode_s else 0.0,
    }


def finite(value: float) -> float:
    return max(value, NEVER) if math.isfinite(value) else NEVER


def token_facts(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    """A token with its bytes as they are; its text has U+FFFD for parts of characters."""
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": finite(value), "bytes": list(raw)}


def logprob_facts(tokenizer: Tokenizer, event: Token) -> dict[str, Any]:
    """A drawn token with the most probable ones in its place."""
    assert event.logprob is not None
    top = [token_facts(tokenizer, token, value) for token, value in event.logprob.top]
    return {**token_facts(tokenizer, event.token, event.logprob.value), "top_logprobs": top}
