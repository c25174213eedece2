"""The output items of a response and the events that build them up."""

from __future__ import annotations

from typing import Any

from hotset.server.wire import new_id
from hotset.text.feed import Delta

Events = list[tuple[str, dict[str, Any]]]


class Items:
    """Items so far. One is open at a time: a message, a reasoning, or a call."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []
        self.n_reasoning = 0
        self._kind: str | None = None

    @property
    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return place if self._kind == "call" else {**place, "content_index": 0}

    def take(self, delta: Delta) -> Events:
        """The events of a delta."""
        if delta.kind == "call":
            call = {"id": new_id("fc"), "type": "function_call", "call_id": delta.call_id or new_id("call")}
            return self._begin("call", {**call, "name": delta.text, "arguments": ""})
        if delta.kind == "arguments":
            self.output[-1]["arguments"] += delta.text
            return [("response.function_call_arguments.delta", {**self._place, "delta": delta.text})]
        begun: Events = [] if self._kind == delta.kind else self._begin(delta.kind, new_item(delta.kind))
        self.output[-1]["content"][0]["text"] += delta.text
        return [*begun, (f"{event_name(delta.kind)}.delta", {**self._place, "delta": delta.text, **logs(delta.kind)})]

    def count(self) -> None:
        """Note a token: one of the reasoning where that is open."""
        self.n_reasoning += self._kind == "reasoning"

    def end(self, *, is_cut: bool) -> Events:
        """Close what is open; an answer has one item at least."""
        begun = [] if self.output else self._begin("content", new_item("content"))
        return [*begun, *self._close("incomplete" if is_cut else "completed")]

    def _begin(self, kind: str, item: dict[str, Any]) -> Events:
        closed = self._close()
        self._kind = kind
        self.output.append({**item, "status": "in_progress"})
        shown = {**self.output[-1], "content": []} if "content" in item else dict(self.output[-1])
        events: Events = [("response.output_item.added", {"output_index": len(self.output) - 1, "item": shown})]
        if kind != "call":
            events.append(("response.content_part.added", {**self._place, "part": dict(item["content"][0])}))
        return [*closed, *events]

    def _close(self, status: str = "completed") -> Events:
        if self._kind is None:
            return []
        item = self.output[-1]
        item["status"] = status
        if self._kind == "call":
            whole = {"name": item["name"], "arguments": item["arguments"]}
            events: Events = [("response.function_call_arguments.done", {**self._place, **whole})]
        else:
            part = item["content"][0]
            text = {"text": part["text"], **logs(self._kind)}
            events = [
                (f"{event_name(self._kind)}.done", {**self._place, **text}),
                ("response.content_part.done", {**self._place, "part": dict(part)}),
            ]
        self._kind = None
        return [*events, ("response.output_item.done", {"output_index": len(self.output) - 1, "item": dict(item)})]


def event_name(kind: str) -> str:
    return "response.output_text" if kind == "content" else "response.reasoning_text"


def logs(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "content" else {}


def new_item(kind: str) -> dict[str, Any]:
    """An empty message or reasoning."""
    if kind == "content":
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return {"id": new_id("msg"), "type": "message", "role": "assistant", "content": [part]}
    part = {"type": "reasoning_text", "text": ""}
    return {"id": new_id("rs"), "type": "reasoning", "summary": [], "content": [part]}
