"""Settings of one generation, with llama.cpp's defaults; checked once, when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from hotset.errors import InputError

# What the device keeps for every sequence: its last tokens for the penalties, and its logit biases.
MAX_RECENT = 4096
MAX_LOGIT_BIAS = 1024
MAX_STOP = 64
MAX_STOP_LENGTH = 1000
# Below this temperature the most probable token is taken: the next one would need a logit within 1e-5 of it to count.
GREEDY_BELOW = 1e-6


def _number(default: float, low: float, high: float) -> Any:
    return field(default=default, metadata={"kind": Real, "low": low, "high": high})


def _integer(default: int | None, low: int, high: int) -> Any:
    return field(default=default, metadata={"kind": Integral, "low": low, "high": high})


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn, and when to stop. None stands for a field's default.

    `temperature` 0 takes the most probable token; `top_k` 0, `top_p` 1 and `min_p` 0 switch these cuts off. The penalties look at
    the last `repeat_last_n` tokens. `seed` None draws a new one per request; `max_tokens` None goes on to the end of the context.
    `logit_bias` maps token ids to what is added to their logits, -inf to forbid one.
    """

    temperature: float = _number(0.8, 0, 1e6)
    top_k: int = _integer(40, 0, 2**31 - 1)
    top_p: float = _number(0.95, 0, 1)
    min_p: float = _number(0.05, 0, 1)
    repeat_penalty: float = _number(1.0, 0.01, 100)
    repeat_last_n: int = _integer(64, 0, MAX_RECENT)
    seed: int | None = _integer(None, 0, 2**64 - 1)
    max_tokens: int | None = _integer(None, 0, 2**31 - 1)
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    presence_penalty: float = _number(0.0, -100, 100)
    frequency_penalty: float = _number(0.0, -100, 100)

    def __post_init__(self) -> None:
        for f in fields(self):
            if f.metadata:
                self._set(f.name, _checked_number(f, getattr(self, f.name)))
        self._set("stop", _checked_stop(self.stop))
        self._set("logit_bias", _checked_bias(self.logit_bias))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def _checked_number(f: Field[Any], value: object) -> float | int | None:
    if value is None:
        value = f.default
        if value is None:
            return None
    kind, low, high = f.metadata["kind"], f.metadata["low"], f.metadata["high"]
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        noun = "an integer" if kind is Integral else "a number"
        raise InputError(f"{f.name} must be {noun} from {low} to {high}, not {_shown(value)}")
    return int(value) if kind is Integral else float(value)  # type: ignore[call-overload,arg-type]


def _checked_stop(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, (tuple, list)) or not all(isinstance(s, str) and s for s in texts):
        raise InputError(f"stop must be a text or a list of texts, none of them empty, not {_shown(stop)}")
    if len(texts) > MAX_STOP:
        raise InputError(f"stop holds {len(texts)} texts; at most {MAX_STOP} are accepted")
    if (longest := max(map(len, texts), default=0)) > MAX_STOP_LENGTH:
        raise InputError(f"stop holds a text of {longest:,} characters; at most {MAX_STOP_LENGTH:,} are accepted")
    return tuple(texts)


def _checked_bias(bias: object) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise InputError(f"logit_bias must map token ids to numbers, not {_shown(bias)}")
    if len(bias) > MAX_LOGIT_BIAS:
        raise InputError(f"logit_bias holds {len(bias)} tokens; at most {MAX_LOGIT_BIAS} are accepted")
    return {_checked_token(token): _checked_bias_value(token, value) for token, value in bias.items()}


def _checked_token(token: object) -> int:
    if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < 2**31:
        raise InputError(f"logit_bias holds the token id {_shown(token)}; ids are integers from 0 to n_vocab - 1")
    return int(token)


def _checked_bias_value(token: object, value: object) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not (value == -math.inf or -1e6 <= value <= 1e6):  # type: ignore[operator]
        raise InputError(f"logit_bias of token {token} must be -inf or a number from -1e6 to 1e6, not {_shown(value)}")
    return float(value)  # type: ignore[arg-type]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
