"""The chat in the terminal, and turn by turn from a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from hotset.cli.answer import Interrupt, stream_answer
from hotset.cli.output import say
from hotset.errors import InputError

if TYPE_CHECKING:
    from hotset.engine.engine import Engine, Generation
    from hotset.text.chat import ChatTemplate

# A model without a template seldom ends its text by itself.
PLAIN_LIMIT = 128


class History(Protocol):
    """What was said so far, as a prompt."""

    def prompt(self, line: str) -> list[int]:
        """Token ids of everything so far and `line`, ready to be answered."""

    def add(self, line: str, answer: str) -> None:
        """Keep a turn."""

    def clear(self) -> None:
        """Begin anew."""


class TemplateHistory:
    """Turns as messages, put into the model's own chat template."""

    def __init__(self, engine: Engine, template: ChatTemplate) -> None:
        self._engine = engine
        self._template = template
        self._messages: list[dict[str, str]] = []

    def prompt(self, line: str) -> list[int]:
        from hotset.text.chat import encode_chat

        return encode_chat(self._engine.tokenizer, self._template, [*self._messages, message("user", line)])

    def add(self, line: str, answer: str) -> None:
        self._messages += [message("user", line), message("assistant", answer)]

    def clear(self) -> None:
        self._messages.clear()


class PlainHistory:
    """Turns as one text that the model continues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._text = ""

    def _with(self, line: str) -> str:
        return f"{self._text}\n{line}" if self._text else line

    def prompt(self, line: str) -> list[int]:
        return self._engine.tokenize(self._with(line))

    def add(self, line: str, answer: str) -> None:
        self._text = self._with(line) + answer

    def clear(self) -> None:
        self._text = ""


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def chat(
    engine: Engine, sampling: dict[str, Any], write: Callable[[str], None], answers: list[tuple[str, Generation]]
) -> None:
    """Answer line after line until the input ends, /exit or Ctrl-C; each turn is added to `answers`."""
    history: History
    if engine.template is None:
        say("note: the model has no chat template, so it continues the text of all turns")
        history = PlainHistory(engine)
        sampling = {**sampling, "max_tokens": sampling["max_tokens"] or PLAIN_LIMIT}
    else:
        history = TemplateHistory(engine, engine.template)
    if sys.stdin.isatty():
        say("chat: Ctrl-C stops an answer, a second one leaves; /clear begins anew, /exit leaves")
    session = engine.session()
    with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C, or one at the prompt
        for line in lines():
            if line == "/clear":
                history.clear()
                say("cleared: the next line begins a new chat")
                continue
            try:
                prompt = history.prompt(line)
                with Interrupt() as interrupt:
                    stream = engine.stream(prompt, session=session, **sampling)
                    answer = stream_answer(stream, write, interrupt)
            except InputError as error:
                say(f"error: {error}")
                say("the line was left out; /clear begins a new chat")
                continue
            if interrupt.asked:
                say("[stopped]")
            elif len(session.tokens) >= session.n_ctx:
                say(f"[the context of {session.n_ctx:,} tokens is full; /clear begins a new chat]")
            history.add(line, answer.text)
            answers.append((line, answer))


def lines() -> Iterator[str]:
    """The user's lines until the end of input or /exit; empty ones are left out."""
    read = typed_line if sys.stdin.isatty() and sys.stdout.isatty() else piped_line
    while (line := read()) is not None and line.strip() != "/exit":
        if line.strip():
            yield line.strip()


def typed_line() -> str | None:
    """A line from the keyboard, with editing and history where Python has them."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() takes it from here
    try:
        return input("> ")
    except EOFError:
        say()
        return None


def piped_line() -> str | None:
    return sys.stdin.readline() or None
