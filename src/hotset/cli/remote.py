"""`hotset run --server`: the same, with a server that runs already."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from hotset.cli.answer import Interrupt
from hotset.cli.chat import lines, message
from hotset.cli.output import say
from hotset.config import SamplingParams
from hotset.errors import HotsetError, InputError

KEY = "HOTSET_API_KEY"
Write = Callable[[str], None]
Answer = dict[str, Any]
# What the server calls them; it has its own defaults, which are the same.
FIELDS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed", "max_tokens")
# A machine that is not there may never answer the call; how long an answer takes is another matter.
CONNECT_S = 10.0


class RefusedError(HotsetError):
    """The server answered, and the answer is no."""


class Server:
    """A server by its URL; the key, where it wants one, is in the environment."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            self._place = (parts.hostname or "", parts.port)
        except ValueError:
            self._place = ("", None)
        if parts.scheme not in ("http", "https") or not self._place[0]:
            raise InputError(f"--server {url!r} is no URL; write one as in http://127.0.0.1:8080")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._url = url
        self._socket: socket.socket | None = None

    def hang_up(self) -> None:
        """End the answer that comes, also while nothing comes, as during a long prompt."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def events(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """The values of a stream's events; closing it ends the server's work. RefusedError with the server's words where it refuses."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        connection = self._kind(*self._place, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)
            self._socket = connection.sock
            connection.request("POST", self._path + path, json.dumps({**body, "stream": True}), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise RefusedError(f"the server says: {problem(answer)}")
            for line in answer:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    value = json.loads(line[6:])
                    if "error" in value:
                        raise RefusedError(f"the server says: {value['error']['message']}")
                    yield value
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise HotsetError(
                f"{self._url}: {reason}; is a server running there? start one with: hotset serve MODEL"
            ) from error
        finally:
            self._socket = None
            connection.close()


def problem(answer: HTTPResponse) -> str:
    """What an answer that is none says."""
    try:
        return str(json.loads(answer.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status} {answer.reason}"


def run_remote(url: str, text: str | None, sampling: SamplingParams, write: Write) -> tuple[list[Answer], bool]:
    """One answer to `text`, or a chat without it -> the answers, and whether Ctrl-C cut the one short."""
    server = Server(url)
    body = {name: getattr(sampling, name) for name in FIELDS if getattr(sampling, name) is not None}
    body["stop"] = list(sampling.stop) or None
    if text is None:
        return chat(server, body, write), False
    with Interrupt(server.hang_up) as interrupt:
        # Without a limit the older API would stop after 16 tokens.
        events = server.events("/v1/completions", {"max_tokens": None, **body, "prompt": text})
        answer = {"prompt": text, **shown(events, write, interrupt)}
    return [answer], interrupt.asked


def chat(server: Server, body: dict[str, Any], write: Write) -> list[Answer]:
    """Answer line after line until the input ends, /exit or Ctrl-C."""
    messages: list[dict[str, str]] = []
    answers: list[Answer] = []
    try:
        for line in lines():
            if line == "/clear":
                messages.clear()
                say("cleared: the next line begins a new chat")
                continue
            asked = [*messages, message("user", line)]
            try:
                with Interrupt(server.hang_up) as interrupt:
                    events = server.events("/v1/chat/completions", {**body, "messages": asked})
                    answer = shown(events, write, interrupt)
            except RefusedError as error:
                say(f"error: {error}")
                say("the line was left out; /clear begins a new chat")
                continue
            if interrupt.asked:
                say("[stopped]")
            messages = [*asked, message("assistant", answer["text"])]
            answers.append({"prompt": line, **answer})
    except KeyboardInterrupt:  # the second Ctrl-C, or one at the prompt
        pass
    return answers


def shown(events: Generator[dict[str, Any]], write: Write, interrupt: Interrupt) -> Answer:
    """Write an answer as it comes, reasoning apart from it -> the whole."""
    text: list[str] = []
    end: dict[str, Any] = {}
    for event in until_asked(events, interrupt):
        for choice in event.get("choices", []):
            delta = choice.get("delta", choice)
            if thought := delta.get("reasoning_content"):
                sys.stderr.write(thought)
                sys.stderr.flush()
            if piece := delta.get("content") or delta.get("text"):
                text.append(piece)
                write(piece)
            if choice.get("finish_reason"):
                end = {"finish_reason": choice["finish_reason"], "timings": event.get("timings", {})}
    whole = "".join(text)
    if not whole.endswith("\n"):
        write("\n")
    return {"text": whole, **end}


def until_asked(events: Generator[dict[str, Any]], interrupt: Interrupt) -> Iterator[dict[str, Any]]:
    """The events until Ctrl-C, which hangs up: what that makes of the answer is no error."""
    try:
        for event in events:
            yield event
            if interrupt.asked:
                events.close()
                return
    except HotsetError:
        if not interrupt.asked:
            raise


def report(answers: list[Answer]) -> None:
    """How fast the server was."""
    for answer in answers:
        times = answer.get("timings")
        if times:
            reused = f", {times['cache_n']} prompt tokens reused" if times["cache_n"] else ""
            say(
                f"prompt: {times['prompt_n']} tokens, {times['prompt_per_second']:.1f} tok/s; "
                f"decode: {times['predicted_n']} tokens, {times['predicted_per_second']:.1f} tok/s{reused}"
            )
