"""Answers that must follow a JSON schema: the tokens that may come next, by llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from hotset.errors import InputError
from hotset.kernels.token_mask import Words, n_words
from hotset.server.errors import ApiError, bad_request
from hotset.text.stream import Detokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from hotset.engine.engine import Engine
    from hotset.text.tokenizer import Tokenizer

ANY_OBJECT = {"type": "object"}
# What chats call the format of an answer.
CHAT_FORMAT = "response_format"
# Between the parts of JSON: enough to indent, not enough to be lost in.
WHITESPACE = r"[\x20\n]{0,16}"
# llguidance takes bytes that begin so for a control token.
CONTROL = b"\xff"
# Schemas that name what is wrong only by keyword; where in the schema that is we find ourselves.
UNKNOWN_KEYS = re.compile(r'Unimplemented keys: \["([^"]*)"')
# Where a schema holds schemas: by name, in a list, or one.
NAMED = ("properties", "patternProperties", "$defs", "definitions")
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")

# What is said of texts, and how many of these are tried one by one to find the one that is wrong.
TEXTUAL = ("pattern", "format")
MAX_TRIED = 200


class Constraint:
    """A schema that was found sound; `is_call` says that the answer is a call of a tool."""

    def __init__(self, engine: Engine, schema: Any, field: str, *, is_call: bool = False) -> None:
        self.is_call = is_call
        self._vocabulary = vocabulary(engine.tokenizer)
        self._tokenizer = engine.tokenizer
        self._n_vocab = engine.config.n_vocab
        self._grammar = checked_grammar(schema, field)
        problem = matcher_problem(self._matcher())
        if problem:
            raise schema_error(schema, field, problem)

    def _matcher(self) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(self._vocabulary, self._grammar, log_level=0)

    def mask(self, after: str | None) -> SchemaMask:
        """The mask of one answer; with `after` all is free until that text was written, the end of the reasoning for one."""
        free = None if after is None else Free(self._tokenizer, after)
        return SchemaMask(self._matcher(), self._n_vocab, free)


class Free:
    """The stretch of an answer before the schema holds."""

    def __init__(self, tokenizer: Tokenizer, until: str) -> None:
        self._text = ""
        self._detokenizer = Detokenizer(tokenizer)
        self._until = until

    def ends_with(self, token: int) -> bool:
        """Whether the stretch ends with this token."""
        self._text = (self._text + self._detokenizer.push(token))[-4 * len(self._until) - 256 :]
        return self._until in self._text


class SchemaMask:
    """See runner.TokenMask."""

    def __init__(self, matcher: LLMatcher, n_vocab: int, free: Free | None) -> None:
        self._matcher = matcher
        self._n_words = n_words(n_vocab)
        self._free = free
        self._n_taken = 0

    def __call__(self, drawn: Sequence[int]) -> Words | None:
        for token in drawn[self._n_taken :]:
            self._take(token)
        self._n_taken = len(drawn)
        if self._free is not None:
            return None
        found = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        if self._matcher.is_error():
            problem = brief_problem(self._matcher.get_error()).partition(";")[0]
            raise InputError(f"the schema cannot be followed any further: {problem}; make it simpler")
        words = np.zeros(self._n_words, np.int32)  # ids past the tokenizer's are never allowed
        n = min(len(found), self._n_words)
        words[:n] = found[:n]
        return words

    def _take(self, token: int) -> None:
        if self._free is None:
            self._matcher.consume_token(token)
        elif self._free.ends_with(token):
            self._free = None


class _Wrapped:
    """A tokenizer as llguidance reads one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.special_ids
        self.eos_token_id = min(tokenizer.end_ids)
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(special)
        self.tokens = [
            CONTROL + tokenizer.token_text(i).encode("utf-8", "replace") if i in special else tokenizer.token_bytes(i)
            for i in range(tokenizer.n_vocab)
        ]

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(text, add_special=False)


@lru_cache(maxsize=2)
def vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """The tokenizer as llguidance needs it, made once."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.end_ids:
        raise bad_request("the model has no token that ends a text, so no answer can follow a schema to its end")
    return LLTokenizer(TokenizerWrapper(_Wrapped(tokenizer)), eos_token=sorted(tokenizer.end_ids))


def checked_grammar(schema: Any, field: str) -> str:
    """The grammar of a schema; a 400 that names the place and keyword where llguidance does not know one."""
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_pattern": WHITESPACE})
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    except (ValueError, RecursionError) as error:
        raise schema_error(schema, field, str(error)) from None
    if is_wrong:
        raise schema_error(schema, field, messages[0])
    return grammar


def matcher_problem(matcher: LLMatcher) -> str | None:
    """What shows only when the first token is looked for: patterns that are none, limits of the grammar."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error() if matcher.is_error() else None


def schema_error(schema: Any, field: str, problem: str) -> ApiError:
    """A 400 with the place in the schema of the keyword that `problem` is about."""
    unknown = UNKNOWN_KEYS.search(problem)
    if unknown is not None:
        keyword = unknown[1]
        path = next((path for path, part in subschemas(schema, "$") if keyword in part), "$")
        return bad_request(f"{field}: at {path} the keyword {keyword!r} is not supported; leave it out", field)
    found = next(unsound_strings(schema), None)
    if found is not None:
        path, keyword, reason = found
        return bad_request(f"{field}: at {path} the keyword {keyword!r} cannot be followed: {reason}", field)
    return bad_request(f"{field}: {brief_problem(problem)}", field)


def unsound_strings(schema: Any) -> Iterator[tuple[str, str, str]]:
    """Path, keyword and reason of every pattern and format that is not known even by itself; of a large schema, among the first."""
    from llguidance import LLMatcher

    alone = ((path, part, keyword) for path, part in subschemas(schema, "$") for keyword in TEXTUAL if keyword in part)
    for path, part, keyword in islice(alone, MAX_TRIED):
        grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", keyword: part[keyword]}))
        is_wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        if is_wrong:
            yield path, keyword, brief_problem(messages[0])


def brief_problem(text: str) -> str:
    """What is wrong in one line; parsers of patterns draw the place first and name the error at the end."""
    first, *rest = text.strip().splitlines() or [""]
    named = next((line.removeprefix("error: ") for line in rest if line.startswith("error: ")), first)
    return named[:300]


def subschemas(schema: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema in a schema, with its path."""
    if not isinstance(schema, Mapping):
        return
    yield path, schema
    for key in NAMED:
        if isinstance(schema.get(key), Mapping):
            for name, part in schema[key].items():
                yield from subschemas(part, f"{path}.{key}.{name}")
    for key in LISTED:
        if isinstance(schema.get(key), list):
            for i, part in enumerate(schema[key]):
                yield from subschemas(part, f"{path}.{key}[{i}]")
    for key in SINGLE:
        yield from subschemas(schema.get(key), f"{path}.{key}")


def constraint_of(
    engine: Engine,
    tools: Sequence[Mapping[str, Any]] | None,
    choice: Any,
    form: Any,
    form_name: str = CHAT_FORMAT,
) -> Constraint | None:
    """What `tool_choice` and the format of the answer, by its name in this API, ask for; a 400 where that cannot be had."""
    if (call := forced_call(tools, choice)) is not None:
        try:
            return Constraint(engine, call, "tools", is_call=True)
        except ApiError:
            for i, tool in enumerate(tools or ()):  # whose schema it is, by its own path
                checked_grammar(tool["function"].get("parameters") or ANY_OBJECT, f"tools[{i}]")
            raise
    found = wanted_schema(form, form_name)
    return None if found is None else Constraint(engine, *found)


def forced_call(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> dict[str, Any] | None:
    """The schema of a call that `tool_choice` demands, None where the model may choose."""
    if choice in (None, "auto", "none"):
        return None
    functions = [tool["function"] for tool in tools or ()]
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        functions = [f for f in functions if f["name"] == name]
        if not functions:
            raise bad_request("tool_choice: names none of the tools", "tool_choice")
    elif choice != "required":
        raise bad_request(
            'tool_choice: must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    if not functions:
        raise bad_request('tool_choice: "required" needs tools', "tool_choice")
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": f["name"]}, "arguments": f.get("parameters") or ANY_OBJECT},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for f in functions
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def wanted_schema(form: Any, name: str) -> tuple[Any, str] | None:
    """The schema that a format, {"type": ..., ...}, asks for and the name of its field, None for plain text."""
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return form.get("schema") or ANY_OBJECT, name
    if kind == "json_schema":
        # Chats have it in an object of its own, the newer APIs beside the type.
        inner, field = form.get("json_schema"), f"{name}.json_schema.schema"
        if not isinstance(inner, Mapping):
            inner, field = form, f"{name}.schema" if "schema" in form or name != CHAT_FORMAT else field
        if isinstance(schema := inner.get("schema"), (dict, bool)):
            return schema, field
        raise bad_request(f"{field}: must be a JSON schema", field)
    raise bad_request(f'{name}.type: must be "text", "json_object" or "json_schema"', f"{name}.type")
