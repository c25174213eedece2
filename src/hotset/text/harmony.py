"""The harmony format of gpt-oss: an answer is a row of messages, each with a channel, and calls are messages to a function."""

from __future__ import annotations

import re

from hotset.text.calls import CallWriter
from hotset.text.feed import Delta, Feed, Kind, Steps, collect, starts_with, stream

SIGNS = ("<|channel|>", "<|message|>")
ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
HEADERS = ("<|start|>", "<|channel|>", "to=")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
FUNCTION = re.compile(r"to=functions\.([^\s<]+)")


def harmony(feed: Feed, writer: CallWriter) -> Steps[None]:
    """Yield an answer: analysis is reasoning, messages to functions are calls, all else is content."""
    seen: set[str] = set()
    while True:
        begin = yield from starts_with(feed, HEADERS)
        if begin is None:
            begin, _ = yield from stream(feed, Delta("content", ""), ["<|start|>", "<|channel|>"])
        rest, marker = yield from collect(feed, ["<|message|>"])
        if begin is None or marker is None:
            return  # a header alone says nothing
        function, channel = FUNCTION.search(begin + rest), CHANNEL.search(begin + rest)
        if function:
            yield writer.begin(function[1])
            yield from stream(feed, writer.arguments(), ENDS, trim=True, trim_end=True)
            continue
        kind: Kind = "reasoning" if channel and channel[1] == "analysis" else "content"
        if kind in seen:
            yield Delta(kind, "\n\n")
        seen.add(kind)
        yield from stream(feed, Delta(kind, ""), ENDS)
