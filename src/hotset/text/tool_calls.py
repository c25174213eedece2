"""How the families of models write tool calls: one parser for each form, and the table that finds a template's form."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotset.text.calls import CallWriter, as_json, is_name
from hotset.text.feed import Delta, Feed, Steps, collect, starts_with, stream
from hotset.text.gemma import gemma_call
from hotset.text.json_calls import call_of, json_call, loaded

Parser = Callable[[Feed, CallWriter], Steps[bool]]


@dataclass(frozen=True)
class CallForm:
    """What a call (or a section of calls) begins with, and what reads the rest: its result is False where that was no call."""

    begins: tuple[str, ...]
    parse: Parser
    at_start: bool = False
    """The answer as a whole is a call or none; `begins` may be left out."""


def tagged_json(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """{"name": ..., "arguments": ...}</tool_call>."""
    if not (yield from json_call(feed, writer)):
        return False
    yield from starts_with(feed, ["</tool_call>"])
    return True


def known_json(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """{"name": ..., "parameters": ...} with nothing around it."""
    return (yield from json_call(feed, writer, known=True))


def tagged_function(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """<function=name><parameter=key>value</parameter></function></tool_call>, one line each."""
    feed.mark()
    if (yield from starts_with(feed, ["<function="])) is None:
        feed.back()
        return False
    name = yield from named(feed, [">"])
    if name is None:
        return False
    yield writer.begin(name[0])
    end: str | None = name[1]
    while end is not None:
        _, end = yield from collect(feed, ["<parameter=", "</function>", "</tool_call>"])
        if end != "<parameter=":
            break
        key, _ = yield from collect(feed, [">"])
        value, end = yield from collect(feed, ["</parameter>"])
        if end is not None:
            yield writer.parameter(key, value.removeprefix("\n").removesuffix("\n"))
    if end is not None:
        yield writer.end()
    if end == "</function>":
        yield from starts_with(feed, ["</tool_call>"])
    return True


def named(feed: Feed, ends: Sequence[str]) -> Steps[tuple[str, str] | None]:
    """Read a function's name and what ends it; None, and back to the mark, where that is no name."""
    name, end = yield from collect(feed, ends)
    if end is None or not is_name(name):
        feed.back()
        return None
    feed.unmark()
    return name, end


def glm(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>."""
    feed.mark()
    name = yield from named(feed, ["<arg_key>", "</tool_call>"])
    if name is None:
        return False
    yield writer.begin(name[0])
    end: str | None = name[1]
    while end == "<arg_key>":
        key, _ = yield from collect(feed, ["</arg_key>"])
        yield from collect(feed, ["<arg_value>"])
        value, end = yield from collect(feed, ["</arg_value>"])
        if end is not None:
            yield writer.parameter(key, value)
            _, end = yield from collect(feed, ["<arg_key>", "</tool_call>"])
    if end is not None:
        yield writer.end()
    return True


def minimax(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """<invoke name="name"><parameter name="key">value</parameter></invoke>, several, </minimax:tool_call>."""
    while (yield from collect(feed, ['<invoke name="', "</minimax:tool_call>"]))[1] == '<invoke name="':
        name, end = yield from collect(feed, ['">'])
        if end is None:
            break
        yield writer.begin(name)
        while end is not None:
            _, end = yield from collect(feed, ['<parameter name="', "</invoke>"])
            if end == "</invoke>":
                yield writer.end()
                break
            key, _ = yield from collect(feed, ['">'])
            value, end = yield from collect(feed, ["</parameter>"])
            if end is not None:
                yield writer.parameter(key, value)
    return True


def deepseek(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """<｜tool▁call▁begin｜>name<｜tool▁sep｜>arguments<｜tool▁call▁end｜>, several, <｜tool▁calls▁end｜>."""  # noqa: RUF002
    return (yield from marked(feed, writer, DEEPSEEK_MARKS))


def kimi(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>arguments<|tool_call_end|>, several, <|tool_calls_section_end|>."""
    return (yield from marked(feed, writer, KIMI_MARKS))


@dataclass(frozen=True)
class Marks:
    """What stands around a name and arguments that are JSON, and behind the last call."""

    begin: str
    middle: str
    end: str
    last: str


DEEPSEEK_MARKS = Marks("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")  # noqa: RUF001
KIMI_MARKS = Marks(
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"
)


def marked(feed: Feed, writer: CallWriter, marks: Marks) -> Steps[bool]:
    while (yield from collect(feed, [marks.begin, marks.last]))[1] == marks.begin:
        header, end = yield from collect(feed, [marks.middle])
        if end is None:
            break
        call_id = header.strip() if ":" in header else ""  # Kimi's name holds the number of the call, and is its id
        yield writer.begin(header.strip().removeprefix("functions.").split(":")[0], call_id)
        yield from stream(feed, writer.arguments(), [marks.end], trim=True, trim_end=True)
    return True


def mistral(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """name[CALL_ID]id[ARGS]arguments, and the next begins with [TOOL_CALLS] again; of old a JSON list of calls."""
    if (yield from starts_with(feed, ["["])):
        while (yield from json_call(feed, writer)):
            yield from starts_with(feed, [","])
        yield from starts_with(feed, ["]"])
        return True
    marker: str | None = "[TOOL_CALLS]"
    while marker is not None:
        header, end = yield from collect(feed, ["[ARGS]"])
        if end is None:
            break
        name, _, call_id = header.partition("[CALL_ID]")
        yield writer.begin(name, call_id)
        marker, _ = yield from stream(feed, writer.arguments(), ["[TOOL_CALLS]"], trim=True, trim_end=True)
    return True


def liquid(feed: Feed, writer: CallWriter) -> Steps[bool]:
    """[name(key="value", ...), ...]<|tool_call_end|>: a list of calls in Python, or in JSON."""
    feed.mark()
    text, _ = yield from collect(feed, ["<|tool_call_end|>"])
    value = loaded(text)
    found = [call_of(item, writer) for item in value] if isinstance(value, list) else python_calls(text, writer)
    if not found or not all(found):
        feed.back()
        return False
    feed.unmark()
    for deltas in found:
        yield from deltas
    return True


def python_calls(text: str, writer: CallWriter) -> list[list[Delta]]:
    """Return the deltas of calls in Python's notation, none where `text` is anything else."""
    try:
        tree: Any = ast.parse(text.strip(), mode="eval").body
        calls: list[Any] = tree.elts if isinstance(tree, ast.List) else [tree]
        read = [
            (ast.unparse(call.func), {word.arg: ast.literal_eval(word.value) for word in call.keywords})
            for call in calls
        ]
        as_json(read)  # bytes, sets and the like have no place in JSON
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError):
        return []
    return [writer.whole(name, arguments) for name, arguments in read]


# By what a template holds; the first that fits.
FORMS: tuple[tuple[str, CallForm], ...] = (
    ("<|tool_call>call:", CallForm(("<|tool_call>",), gemma_call)),
    ("<｜tool▁calls▁begin｜>", CallForm(("<｜tool▁calls▁begin｜>",), deepseek)),  # noqa: RUF001
    ("<|tool_calls_section_begin|>", CallForm(("<|tool_calls_section_begin|>",), kimi)),
    ("<minimax:tool_call>", CallForm(("<minimax:tool_call>",), minimax)),
    ("<arg_key>", CallForm(("<tool_call>",), glm)),
    ("<function=", CallForm(("<tool_call>",), tagged_function)),  # Qwen 3 Coder, Qwen 3.5
    ("<tool_call>", CallForm(("<tool_call>",), tagged_json)),  # Qwen 3, Granite 4, Hermes
    ("[TOOL_CALLS]", CallForm(("[TOOL_CALLS]",), mistral)),
    ("<|tool_list_start|>", CallForm(("<|tool_call_start|>",), liquid)),  # LFM 2
    ("<|python_tag|>", CallForm(("<|python_tag|>",), known_json, at_start=True)),  # Llama 3
)


def call_form(template: str) -> CallForm | None:
    """Return the form of the family that a template's text belongs to, None where it knows no calls."""
    return next((form for sign, form in FORMS if sign in template), None)


def content_and_calls(feed: Feed, form: CallForm | None, writer: CallWriter, *, trim: bool) -> Steps[None]:
    """Yield the rest of an answer; whitespace around calls is left out, and that at the start with `trim`."""
    if form is not None and form.at_start:
        begin = yield from starts_with(feed, form.begins)
        while (yield from form.parse(feed, writer)):
            begin, trim = "", True
            yield from starts_with(feed, [";"])
        if begin:
            yield Delta("content", begin)
        form = None
    begins = form.begins if form else ()
    while True:
        begin, space = yield from stream(feed, Delta("content", ""), begins, trim=trim)
        if begin is None or form is None:
            return
        trim = yield from form.parse(feed, writer)
        if not trim:
            yield Delta("content", space + begin)
