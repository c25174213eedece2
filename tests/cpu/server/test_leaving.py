"""Clients that leave, engines that fail, and servers that stop: what runs ends at once, and what waits never begins."""

from __future__ import annotations

import json
import threading

import pytest

from hotset.engine.scheduler import Scheduler
from hotset.engine.worker import Worker
from hotset.errors import EngineStoppedError, FileError
from scripted import CHUNK, Gate, scripted_engine
from serving_thread import serving, until

CHAT = "/v1/chat/completions"
PATHS = pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 400}),
        ("/v1/responses", {"input": "x"}),
    ],
)
STREAMED = pytest.mark.parametrize("stream", [True, False])
LONG = {"prompt": [400 + i for i in range(6 * CHUNK)], "max_tokens": 10}


@pytest.fixture
def gated():
    """A server whose chunks and steps wait to be let through."""
    gate = Gate()
    with serving(lambda _progress: scripted_engine(n_ctx=512), n_parallel=1, max_waiting=4) as client:
        scripted = client.scheduler.engine.scripted
        scripted.on_feed = scripted.on_step = gate
        yield client, scripted, gate
        gate.open(10_000)


@PATHS
@STREAMED
def test_a_client_that_leaves_while_tokens_come_ends_its_answer_within_two_steps(gated, path, body, stream):
    client, scripted, gate = gated
    connection = client.open(path, {**body, "stream": stream})
    gate.open(6)
    until(lambda: len(scripted.steps) == 5)
    connection.close()
    until(lambda: any(lane.work is None or lane.work.job.cancelled for lane in client.scheduler._lanes))
    gate.open(100)
    until(lambda: client.scheduler.n_running == 0)
    assert len(scripted.steps) <= 7
    assert client.scheduler.totals.cancelled == 1


@STREAMED
def test_a_client_that_leaves_in_its_prompt_ends_it_within_a_chunk(gated, stream):
    client, scripted, gate = gated
    connection = client.open("/v1/completions", {**LONG, "stream": stream})
    gate.open(2)
    until(lambda: len(scripted.fed) == 2)
    connection.close()
    until(lambda: client.scheduler._lanes[0].work.job.cancelled)
    gate.open(100)
    until(lambda: client.scheduler.n_running == 0)
    assert len(scripted.fed) <= 3
    assert scripted.steps == []


@STREAMED
def test_a_client_that_leaves_while_it_waits_never_begins(gated, stream):
    client, scripted, gate = gated
    first = client.open("/v1/completions", {"prompt": [500], "max_tokens": 3})
    until(lambda: client.scheduler.n_running == 1)
    waiting = client.open("/v1/completions", {**LONG, "stream": stream})
    until(lambda: client.scheduler.n_waiting == 1)
    waiting.close()
    until(lambda: client.scheduler._waiting[0][0].cancelled)
    gate.open(100)
    assert b"200 OK" in first.recv(100)
    until(lambda: client.scheduler.n_running == client.scheduler.n_waiting == 0)
    assert len(scripted.fed) == 1


def test_one_who_leaves_before_the_body_is_there_or_after_the_answer_hurts_nobody(gated):
    client, _, gate = gated
    half = client.open(CHAT, {"messages": [{"role": "user", "content": "x"}]})
    half.close()
    unread = client.open("/v1/completions", {"prompt": [500], "max_tokens": 3, "stream": True})
    gate.open(1000)
    until(lambda: client.scheduler.n_running == 0)
    unread.close()
    assert client.post("/v1/completions", {"prompt": [500], "max_tokens": 3})["usage"]["completion_tokens"] == 3


def test_beyond_the_bound_clients_are_told_when_to_come_again(gated):
    client, _, gate = gated
    kept = [client.open("/v1/completions", {"prompt": [500 + i], "max_tokens": 3}) for i in range(5)]
    until(lambda: client.scheduler.n_waiting == 4)
    status, headers, body = client.request(
        "POST",
        "/v1/completions",
        json.dumps({"prompt": [9], "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )
    assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
    assert int(headers["retry-after"]) >= 1
    gate.open(1000)
    assert all(b"200 OK" in one.recv(100) for one in kept)


def test_http_is_answered_while_the_engine_is_busy(gated):
    client, _, _ = gated
    connection = client.open("/v1/completions", LONG)
    until(lambda: client.scheduler.n_running == 1)
    assert client.get("/health")["status"] == "ok"
    assert client.get("/slots")[0]["phase"] == "prompt"
    assert client.get("/props")["default_generation_settings"]["n_ctx"] == 512
    assert client.post("/tokenize", {"content": "x"})["tokens"]
    connection.close()


def fail() -> None:
    raise RuntimeError("the device is gone")


@STREAMED
def test_an_engine_that_fails_fails_its_requests_and_is_started_once_more(scripted, stream):
    engine = scripted.scheduler.engine
    engine.scripted.on_step = fail
    status, _, body = scripted.request(
        "POST",
        "/v1/completions",
        json.dumps({"prompt": [5], "stream": stream}).encode(),
        {"Content-Type": "application/json"},
    )
    assert status == 503
    assert "device is gone" not in body.decode()
    until(lambda: scripted.request("GET", "/health")[0] == 200)
    assert scripted.get("/health")["restarts"] == 1
    assert scripted.post("/v1/completions", {"prompt": [5], "max_tokens": 2})["usage"]["completion_tokens"] == 2
    engine.scripted.on_step = fail
    scripted.post("/v1/completions", {"prompt": [5]}, status=503)
    until(lambda: scripted.worker.state == "failed")
    status, _, body = scripted.request("GET", "/health")
    assert status == 503
    assert json.loads(body)["status"] == "failed"
    scripted.post("/v1/completions", {"prompt": [5]}, status=503)
    scripted.post("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, status=503)


def test_a_failure_after_the_first_token_is_an_event_of_the_stream(scripted):
    engine = scripted.scheduler.engine
    n = 0

    def fail_later() -> None:
        nonlocal n
        n += 1
        if n == 4:
            fail()

    engine.scripted.on_step = fail_later
    events = scripted.events("/v1/completions", {"prompt": [5], "max_tokens": 30})
    assert events[-1][1]["error"]["code"] == 503


def test_an_error_of_one_request_is_told_and_the_next_is_answered(scripted):
    error = scripted.post("/v1/completions", {"prompt": [5], "seed": 666}, status=500)["error"]
    assert error["type"] == "server_error"
    assert scripted.post("/v1/completions", {"prompt": [5], "max_tokens": 1})["choices"]


def test_while_the_model_loads_health_tells_how_far_it_is_and_all_else_waits():
    loaded = threading.Event()

    def open_engine(progress):
        progress("experts", 30, 120)
        loaded.wait(30)
        return scripted_engine()

    with serving(open_engine, wait=False) as client:
        until(lambda: client.worker.progress[1] == 30)
        status, _, body = client.request("GET", "/health")
        assert status == 503
        assert json.loads(body)["progress"] == {"stage": "experts", "done": 30, "total": 120}
        for path in ("/v1/models", "/props", "/slots", "/metrics", "/v1/experts"):
            assert client.request("GET", path)[0] == 503
        client.post("/v1/completions", {"prompt": "x"}, status=503)
        loaded.set()
        until(lambda: client.request("GET", "/health")[0] == 200)


def test_a_model_that_cannot_be_loaded_is_reported_to_whoever_started_the_thread():
    ended = threading.Event()

    def open_engine(_progress):
        raise FileError("x.gguf", "magic", "is none")

    worker = Worker(open_engine, lambda engine: Scheduler(engine, n_parallel=1, max_waiting=1), ended.set)
    worker.start()
    assert ended.wait(30)
    assert worker.failed_to_load
    assert isinstance(worker.error, FileError)
    with pytest.raises(EngineStoppedError):
        _ = worker.scheduler
