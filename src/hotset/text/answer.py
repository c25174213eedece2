"""An answer taken apart while it streams: content, reasoning and tool calls, by the family that the chat template belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotset.text.calls import CallWriter
from hotset.text.feed import Delta, Feed, Steps
from hotset.text.harmony import SIGNS, harmony
from hotset.text.reasoning import Tags, reasoning, reasoning_tags
from hotset.text.tool_calls import CallForm, call_form, content_and_calls


@dataclass(frozen=True)
class Call:
    """A tool call: `arguments` is JSON text as the model wrote it; `call_id` is "" where the model gave none."""

    name: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


class AnswerParser:
    """Takes the text of an answer in any pieces and gives deltas; together they are the same for any pieces.

    `template` is the chat template's text, `prompt` what it rendered (its end says whether the answer begins in reasoning), `tools` those
    that the model was told of, in OpenAI's form: without any, calls are not looked for. The text must hold the control tokens that the
    model wrote, except those that ended the answer. What looks like a call and is none stays content.
    """

    def __init__(self, template: str, *, prompt: str = "", tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._feed = Feed()
        writer = CallWriter(tools or ())
        if all(sign in template for sign in SIGNS):
            self._steps = harmony(self._feed, writer)
        else:
            tags = reasoning_tags(template)
            opened = tags is not None and tags.opened_by(prompt)
            self._steps = tagged(self._feed, tags, opened, call_form(template) if tools else None, writer)
        self._running = True

    def push(self, text: str) -> list[Delta]:
        """Return what this piece of text completes."""
        self._feed.push(text)
        return list(self._found())

    def flush(self) -> list[Delta]:
        """Return what was held back, as the answer has ended."""
        self._feed.ended = True
        return list(self._found())

    def _found(self) -> Iterator[Delta]:
        while self._running:
            try:
                delta = next(self._steps)
            except StopIteration:
                self._running = False
                return
            if delta is None:
                return
            if delta.text:
                yield delta


def tagged(feed: Feed, tags: Tags | None, opened: bool, form: CallForm | None, writer: CallWriter) -> Steps[None]:
    reasoned = tags is not None and (yield from reasoning(feed, tags, opened=opened))
    yield from content_and_calls(feed, form, writer, trim=reasoned)


def parse_answer(
    text: str, template: str, *, prompt: str = "", tools: Sequence[Mapping[str, Any]] | None = None
) -> Answer:
    """Take a whole answer apart; see `AnswerParser`."""
    parser = AnswerParser(template, prompt=prompt, tools=tools)
    deltas = [*parser.push(text), *parser.flush()]
    joined = {kind: "".join(d.text for d in deltas if d.kind == kind) for kind in ("content", "reasoning")}
    calls = [
        Call(d.text, "".join(a.text for a in deltas if a.kind == "arguments" and a.index == d.index), d.call_id)
        for d in deltas
        if d.kind == "call"
    ]
    return Answer(joined["content"], joined["reasoning"], tuple(calls))
