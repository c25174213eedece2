"""The fields that requests to generate share, strict about numbers: "7", true and NaN are none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hotset.config import SamplingParams
from hotset.errors import InputError
from hotset.server.errors import bad_request

MAX_ANSWERS = 16
MAX_TOP = 20
# Fields of ours that llama.cpp's clients send too, beside OpenAI's.
SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed", "presence_penalty", "frequency_penalty",
)  # fmt: skip
# What -1 stands for in llama.cpp and the many clients written for it: a seed of the server's choice, no cut, no limit.
MINUS_ONE = {"seed": None, "top_k": 0, "max_tokens": None}


def as_list(value: Any) -> Any:
    """One text where a list of texts is meant."""
    return [value] if isinstance(value, str) else value


def token_biases(value: Any) -> Any:
    """{"id": bias} as JSON has it, or [[id, bias], ...] as llama.cpp's clients send it -> {id: bias}."""
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        if not all(isinstance(token, int) and not isinstance(token, bool) for token, _ in value):
            raise ValueError("must map token ids to numbers")
        return {token: -float("inf") if bias is False else bias for token, bias in value}
    if isinstance(value, Mapping):
        if not all(re.fullmatch(r"[0-9]{1,10}", str(token)) for token in value):
            raise ValueError("must map token ids to numbers")
        return {int(token): bias for token, bias in value.items()}
    return value


Stops = Annotated[list[str], BeforeValidator(as_list), Field(max_length=64)]
Biases = Annotated[dict[int, float], BeforeValidator(token_biases)]


class Body(BaseModel):
    """A request's body. Fields that are not known are left alone: clients send many that mean nothing here."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


# What other servers take to constrain an answer, or to tell a model of calls. Left alone the answer would be free, and nothing say so.
ELSEWHERE = {
    "response_format": ("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    "tools": ("functions",),
}  # fmt: skip


class Sampling(Body):
    """How tokens are drawn; null stands for the default."""

    model: str | None = Field(None, max_length=1000)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Biases | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_ANSWERS)

    @model_validator(mode="before")
    @classmethod
    def _nothing_that_would_be_lost(cls, value: Any) -> Any:
        for instead, names in ELSEWHERE.items():
            for name in names:
                if isinstance(value, Mapping) and value.get(name):
                    raise bad_request(f"{name}: is not known here; use {instead}", name)
        return value

    @property
    def n_answers(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def params(self, max_tokens: int | None, limit_name: str = "max_tokens") -> SamplingParams:
        """The settings of the engine; a 400 that names the field where one is out of range."""
        settings = {name: getattr(self, name) for name in SAMPLING}
        settings |= {"max_tokens": max_tokens, "stop": self.stop, "logit_bias": self.logit_bias}
        settings |= {name: value for name, value in MINUS_ONE.items() if settings[name] == -1}
        if self.seed is not None and -(2**63) <= self.seed < -1:  # OpenAI's seeds have a sign
            settings["seed"] = self.seed % 2**64
        return checked_params(settings, {"max_tokens": limit_name})


def checked_params(settings: dict[str, Any], names: Mapping[str, str] | None = None) -> SamplingParams:
    """SamplingParams, or a 400 that names the field, by what this API calls it where `names` says so."""
    try:
        return SamplingParams(**settings)
    except InputError as error:
        field, space, rest = str(error).partition(" ")
        field = (names or {}).get(field, field)
        raise bad_request(f"{field}{space}{rest}", field) from None
