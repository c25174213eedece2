"""The tokens of a model file: texts, types, special ids, and which of them end an answer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from hotset.errors import FileError, InputError

T = TypeVar("T")


class TokenizerWarning(UserWarning):
    """A model file whose tokenizer is usable but looks wrong: what is odd, and what was done about it."""


class TokenType(IntEnum):
    """The numbers of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # spelled so in the format
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}

# Names that end an answer whatever their type: no text is spelled so. The lists are llama.cpp's.
END_MARKERS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek spells it with full-width bars
    }
)
# Names that may stand in plain text (`</s>` is HTML): they count where the file marks them as special.
END_NAMES = frozenset(
    {"</s>", "<eos>", "[EOS]", "[EOT]", "<EOT>", "_<EOT>", "[e~[", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
)
NO_ID = -1
MARKED = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED})


@dataclass(frozen=True)
class Vocabulary:
    """Token texts by id (bytes that are no UTF-8 as surrogates), their types, and the ids with a role."""

    path: str
    tokens: Sequence[str]
    types: Sequence[int]
    ids: Mapping[str, int]
    roles: Mapping[str, int]
    """Ids by role: "bos", "eos", "eot", "eom", "unk", "sep", "pad", "mask"; roles that the model lacks are left out."""
    end_ids: frozenset[int] = frozenset()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], path: str, default_roles: Mapping[str, int]) -> Vocabulary:
        """Read `tokenizer.ggml.*`; `default_roles` holds where the file does not name an id."""
        tokens = read_array(metadata, "tokens", path, str)
        if not tokens:
            raise FileError(path, "tokenizer.ggml.tokens", "is missing or empty")
        types = read_array(metadata, "token_type", path, int, len(tokens)) or [TokenType.NORMAL] * len(tokens)
        # Where two tokens share a text, the first id stands for it.
        ids = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1), strict=True))
        ids.pop("", None)
        vocabulary = cls(path, tokens, types, ids, read_roles(metadata, path, len(tokens), default_roles))
        return with_end_ids(vocabulary)

    def of_type(self, *types: TokenType) -> list[int]:
        """Return the ids of tokens of these types that have a text."""
        return [index for index, kind in enumerate(self.types) if kind in types and self.tokens[index]]

    def text(self, index: int) -> str:
        """Return token `index` as the file spells it."""
        if not 0 <= index < len(self.tokens):
            raise InputError(f"token id {index} is out of range: the vocabulary has {len(self.tokens):,} tokens")
        return self.tokens[index]


def read_array(
    metadata: Mapping[str, Any], name: str, path: str, kind: type[T], n: int | None = None
) -> list[T] | None:
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        raise FileError(path, key, f"should be an array of {kind.__name__}", value=value)
    items = value.tolist() if isinstance(value, np.ndarray) else list(value)
    kinds = (int, float) if kind is float else kind
    if not all(isinstance(item, kinds) for item in items):
        raise FileError(path, key, f"should be an array of {kind.__name__}", value=value)
    if n is not None and len(items) != n:
        raise FileError(path, key, f"has {len(items):,} entries for {n:,} tokens", value=len(items))
    return items


def read_value(metadata: Mapping[str, Any], name: str, path: str, kind: type[T], default: T) -> T:
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key, default)
    if not isinstance(value, kind):
        raise FileError(path, key, f"is {value!r}, but should be of type {kind.__name__}", value=value)
    return value


def read_roles(metadata: Mapping[str, Any], path: str, n_tokens: int, defaults: Mapping[str, int]) -> dict[str, int]:
    roles = {role: index for role, index in defaults.items() if index < n_tokens}
    for role, name in SPECIAL_KEYS.items():
        index = read_value(metadata, name, path, int, NO_ID)
        if 0 <= index < n_tokens:
            roles[role] = index
        elif index not in (NO_ID, 0xFFFFFFFF):  # both are written for "none"
            warn(f"{path}: tokenizer.ggml.{name} is {index:,}, but there are {n_tokens:,} tokens; it is not used")
    return roles


def with_end_ids(vocabulary: Vocabulary) -> Vocabulary:
    """Find the tokens that end an answer; they become CONTROL tokens. An end id that points to plain text is dropped."""
    roles = dict(vocabulary.roles)
    named = {vocabulary.ids[name] for name in END_MARKERS & vocabulary.ids.keys()}
    named |= {i for i in map(vocabulary.ids.get, END_NAMES) if i is not None and vocabulary.types[i] in MARKED}
    for role in ("eos", "eot", "eom"):
        index = roles.get(role)
        if index is None or index in named:
            continue
        text = vocabulary.tokens[index]
        if vocabulary.types[index] == TokenType.CONTROL or looks_like_marker(text):
            named.add(index)
        else:
            warn(
                f"{vocabulary.path}: tokenizer.ggml.{SPECIAL_KEYS[role]} points to {text!r}, which is plain text; "
                "it does not end answers"
            )
            del roles[role]
    if "<|tool_response>" in vocabulary.ids:  # Gemma 4, where </s> is HTML
        named.discard(vocabulary.ids.get("</s>", NO_ID))
    # In the harmony format <|end|> closes a message, and only <|return|> and <|call|> close the answer.
    closers = {"<|return|>", "<|call|>", "<|calls|>", "<|flush|>"} & vocabulary.ids.keys()
    types = list(vocabulary.types)
    for index in named:
        types[index] = TokenType.CONTROL
    end_ids = frozenset(named) - ({vocabulary.ids.get("<|end|>", NO_ID)} if len(closers) > 1 else set())
    return replace(vocabulary, types=types, roles=roles, end_ids=end_ids)


def looks_like_marker(text: str) -> bool:
    return len(text) > 2 and text[0] in "<[" and text[-1] in ">]"


def warn(message: str) -> None:
    warnings.warn(message, TokenizerWarning, stacklevel=2)
