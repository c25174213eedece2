"""Asking a server: what happens where there is none, or another one."""

from __future__ import annotations

import socket
import threading

import pytest

from hotset.cli.remote import CONNECT_S, RefusedError, Server
from hotset.errors import HotsetError


def ask(url: str) -> list[object]:
    return list(Server(url).events("/v1/completions", {"prompt": "x"}))


def test_a_call_that_nobody_answers_is_given_up(monkeypatch):
    def call(_address, timeout, *_more):
        assert timeout == CONNECT_S
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", call)
    with pytest.raises(HotsetError, match="timed out; is a server running there"):
        ask("http://192.0.2.1:8080")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone", "404 Not Found"),
        (b'HTTP/1.0 401 x\r\n\r\n{"error": {"message": "an API key is needed"}}', "an API key is needed"),
        (b'HTTP/1.0 200 OK\r\n\r\ndata: {"error": {"message": "the engine failed"}}\n\n', "the engine failed"),
    ],
)  # fmt: skip
def test_what_a_server_refuses_is_told_in_its_words(answer, said):
    with pytest.raises(RefusedError, match=f"the server says: {said}"):
        answered(answer)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.0 200 OK\r\n\r\ndata: none\n\n"])
def test_what_is_no_such_server_is_named(answer):
    with pytest.raises(HotsetError, match="is a server running there"):
        answered(answer)


def answered(answer: bytes) -> list[object]:
    """Ask a server that gives this one answer."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ask(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            thread.join()
