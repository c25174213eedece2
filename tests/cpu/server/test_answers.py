"""Answers between the threads: all that was told comes, in order, together where it was told together, and first tokens and ends at once."""

from __future__ import annotations

import asyncio
import json

import pytest

from hotset.engine.job import Failed, Finished, Token, Usage
from hotset.errors import HotsetError, InputError
from hotset.server import answers as answers_module
from hotset.server import serving, sse
from hotset.server.answers import Answers
from hotset.server.sse import EventStream, TextEvent, event
from scripted import scripted_engine
from serving_thread import until

FOREVER_S = 1e6
END = Finished("length", "", None, Usage(1, 0, 1, 0.0, 0.0, 0.0))


class Nobody:
    """A scheduler of which nothing is asked but to cancel."""

    engine = scripted_engine()

    def cancel(self, job):
        self.cancelled = job


def token(n: int) -> Token:
    return Token(n, f" {n}", False, None)


def with_answers(use, n=1):
    """The result of `use(answers, tellers)` in a loop of its own."""

    async def main():
        answers = Answers(Nobody())
        answers.jobs = [object()] * n
        try:
            return await use(answers, [answers.teller(i) for i in range(n)])
        finally:
            answers.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.fixture
def one_seed(monkeypatch):
    """Requests that name no seed get the same."""
    monkeypatch.setattr(serving.secrets, "randbits", lambda _n: 7)


@pytest.fixture
def never_again(monkeypatch):
    """After it was woken once the loop does not look again by itself."""
    monkeypatch.setattr(answers_module, "PACE_S", FOREVER_S)


def test_what_is_told_together_comes_together_and_in_order():
    async def use(answers, tellers):
        for n in (1, 2, 3):
            tellers[0](token(n))
        return await answers.take()

    assert with_answers(use) == [(0, token(n)) for n in (1, 2, 3)]


def test_first_tokens_and_ends_do_not_wait(never_again):
    async def use(answers, tellers):
        tellers[0](token(1))
        first = await answers.take()
        tellers[0](token(2))
        tellers[1](token(7))
        tellers[0](END)
        then = await answers.take()
        tellers[1](END)
        return first, then, await answers.take(), await answers.take()

    first, then, last, nothing = with_answers(use, 2)
    assert first == [(0, token(1))]
    assert then == [(0, token(2)), (1, token(7)), (0, END)]
    assert last == [(1, END)]
    assert nothing == []


def test_tokens_after_the_first_come_without_another_word():
    async def use(answers, tellers):
        tellers[0](token(1))
        await answers.take()
        tellers[0](token(2))
        return await answers.take()

    assert with_answers(use) == [(0, token(2))]


def test_a_token_after_a_pause_wakes_the_loop(never_again):
    async def use(answers, tellers):
        tellers[0](token(1))
        await answers.take()
        answers._look()  # as the timer does
        assert answers._sleeps
        tellers[0](token(2))
        return await answers.take()

    assert with_answers(use) == [(0, token(2))]


def test_what_came_before_a_failure_is_told_before_it(never_again):
    async def use(answers, tellers):
        tellers[0](token(1))
        tellers[0](token(2))
        tellers[0](Failed(HotsetError("broken")))
        came = await answers.take()
        with pytest.raises(HotsetError, match="broken"):
            await answers.take()
        return came

    assert with_answers(use) == [(0, token(1)), (0, token(2))]


def test_tellers_of_a_closed_loop_harm_nobody():
    async def use(_answers, tellers):
        return tellers

    (tell,) = with_answers(use)
    tell(token(1))
    tell(END)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 12}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12}),
        ("/v1/responses", {"input": "x"}),
    ],
)
def test_events_are_the_same_however_often_they_are_sent(scripted, one_seed, monkeypatch, path, body):
    def texts():
        return [value.get("delta") or value.get("choices") for _, value in scripted.events(path, body)]

    monkeypatch.setattr(answers_module, "PACE_S", 0.0)
    often = texts()
    monkeypatch.setattr(answers_module, "PACE_S", FOREVER_S)
    assert texts() == often
    assert len(often) > 5


def test_a_client_that_reads_late_loses_nothing(scripted, one_seed):
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    expected = scripted.post("/v1/chat/completions", {**body, "stream": False})["choices"][0]["message"]["content"]
    connection = scripted.open("/v1/chat/completions", body)
    until(lambda: scripted.scheduler.totals.finished == 2)
    seen = b""
    while b"[DONE]" not in seen:
        seen += connection.recv(100)
    connection.close()
    events = [
        json.loads(line[6:])
        for line in seen.split(b"\r\n")
        for line in line.split(b"\n")
        if line.startswith(b"data: {")
    ]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == expected


@pytest.mark.parametrize("text", ["", "a", '"\\', "\n\u2028", "\U0001f600 é", "\ud800", "</script>", "{}"])
def test_an_event_that_is_rendered_once_is_what_each_would_be(text):
    def make(text):
        return {"id": "x", "model": 'a "quoted" name', "delta": {"content": text}, "end": None}

    assert TextEvent(make)(text) == event(make(text))


def test_a_stream_whose_first_token_takes_long_says_that_it_is_still_there(monkeypatch):
    monkeypatch.setattr(sse, "PATIENCE_S", 0.02)

    class Writer:
        def take(self, index, found):
            yield event({"text": found.text})

        def end(self):
            yield sse.DONE

    async def use(answers, tellers):
        sent, enough = [], asyncio.Event()

        async def send(message):
            sent.append(message)
            if sum(m.get("body") == sse.STILL_THERE.encode() for m in sent) == 2 and not enough.is_set():
                enough.set()
                tellers[0](token(1))
                tellers[0](END)

        await EventStream(answers, Writer())({"path": "/"}, asyncio.Event().wait, send)
        return sent

    start, *bodies, last = with_answers(use)
    assert start["type"] == "http.response.start"
    text = b"".join(m["body"] for m in bodies).decode()
    assert text.startswith(2 * sse.STILL_THERE)
    assert [line for line in text.split("\n") if line.startswith("data:")] == [
        'data: {"text":" 1"}',
        'data: {"text":""}',
        "data: [DONE]",
    ]
    assert last == {"type": "http.response.body", "body": b"", "more_body": False}


def test_an_error_that_comes_soon_has_a_status_of_its_own_and_a_late_one_is_an_event(monkeypatch):
    def told(patience):
        monkeypatch.setattr(sse, "PATIENCE_S", patience)

        async def use(answers, tellers):
            sent = []

            async def send(message):
                sent.append(message)
                if message.get("body") == sse.STILL_THERE.encode():
                    tellers[0](Failed(InputError("no luck")))

            if patience == FOREVER_S:
                tellers[0](Failed(InputError("no luck")))
            await EventStream(answers, None)({"path": "/v1/completions", "type": "http"}, asyncio.Event().wait, send)
            return sent

        return with_answers(use)

    soon, late = told(FOREVER_S), told(0.02)
    assert soon[0]["status"] >= 400
    assert late[0]["status"] == 200
    assert b"no luck" in b"".join(m.get("body", b"") for m in late)
