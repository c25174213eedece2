"""`hotset serve` as a process of its own: it listens, answers, keeps its key to itself and ends when it is told to."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

PATIENCE_S = 600
KEY = "a-key-that-nobody-else-has"
CPU = ("--device", "cpu", "-t", "1")


class Served:
    def __init__(self, *args: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hotset", "serve", "demo", "--port", "0", *CPU, *args],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self.log: list[str] = []
        self._reader = threading.Thread(target=lambda: self.log.extend(iter(self.process.stderr.readline, "")))
        self._reader.start()
        self.url = re.search(r"http://\S+", self.wait_for("listening on"))[0]

    def wait_for(self, text: str) -> str:
        for _ in range(PATIENCE_S * 20):
            if found := [line for line in self.log if text in line]:
                return found[0]
            assert self.process.poll() is None, self.log
            time.sleep(0.05)
        raise AssertionError(self.log)

    def ask(self, path: str, value=None, key: str | None = None):
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        data = None if value is None else json.dumps(value).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=PATIENCE_S) as got:  # noqa: S310
            return json.load(got)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(10)
        return code


@contextmanager
def served(*args: str, **environment: str):
    server = Served(*args, **environment)
    try:
        server.wait_for("ready:")
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="module")
def server():
    with served("--parallel", "2", "-c", "1024") as one:
        yield one


def test_an_idle_connection_is_kept_for_longer_than_clients_trust_it(server):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_S)
    for pause in (0, 6):  # the web server's own limit would be five seconds
        time.sleep(pause)
        if pause:
            connection.auto_open = 0  # a closed connection is an error, not opened again
        connection.request("GET", "/health")
        assert json.load(connection.getresponse())["status"] == "ok"
    connection.close()


def test_run_asks_a_server(server, hotset):
    done = hotset("run", "--server", server.url, "-p", "The package", "-n", "6", "--temp", "0")
    assert done.returncode == 0
    local = hotset("run", "demo", "-p", "The package", "-n", "6", "--temp", "0", *CPU)
    assert done.stdout == local.stdout
    assert "tok/s" in done.stderr


def test_run_chats_with_a_server(server, hotset):
    done = hotset("run", "--server", server.url, "-n", "4", "--json", input="Hello\nAgain\n/clear\nHello\n")
    turns = json.loads(done.stdout)["turns"]
    assert [turn["prompt"] for turn in turns] == ["Hello", "Again", "Hello"]
    assert all(turn["timings"]["predicted_n"] <= 4 for turn in turns)


def test_a_line_that_the_server_refuses_is_left_out_of_the_chat(server, hotset):
    done = hotset("run", "--server", server.url, "-n", "4", "--json", input=f"Hello\n{'word ' * 2000}\nAgain\n")
    assert done.returncode == 0
    assert [turn["prompt"] for turn in json.loads(done.stdout)["turns"]] == ["Hello", "Again"]
    assert "error: the server says: the prompt has" in done.stderr
    assert "the line was left out" in done.stderr


def test_a_server_that_is_not_there_is_named(hotset):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "ftp://x", "http://"):
        done = hotset("run", "--server", url, "-p", "x")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("error: ")
    assert hotset("run", "demo", "--server", "http://127.0.0.1:1", "-p", "x").returncode == 1


def test_ctrl_c_ends_the_wait_for_a_server_that_says_nothing_yet():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "hotset", "run", "--server", url, "-p", "x"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1 << 16).startswith(b"POST /v1/completions")
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert out == "\n"
    assert "error" not in err


def test_a_signal_lets_what_runs_come_to_its_end():
    with served("--parallel", "1", "-c", "512") as server:
        answers = []
        body = {"prompt": "The", "max_tokens": 300, "logit_bias": {"0": -100, "1": -100, "2": -100}}
        threads = [
            threading.Thread(target=lambda: answers.append(server.ask("/v1/completions", body))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        while sum(slot["is_processing"] for slot in server.ask("/slots")) < 1:
            time.sleep(0.01)
        assert server.end() == 0
        for thread in threads:
            thread.join(PATIENCE_S)
        assert any(answer["usage"]["completion_tokens"] == 300 for answer in answers)


def test_the_key_shows_in_no_log_and_no_process_list(tmp_path):
    file = tmp_path / "keys"
    file.write_text(KEY)
    for args, environment in ((("--api-key-file", str(file)), {}), ((), {"HOTSET_API_KEY": KEY})):
        with served("-v", *args, **environment) as server:
            with pytest.raises(urllib.error.HTTPError, match="401"):
                server.ask("/v1/models")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                server.ask("/v1/models", key=KEY + "x")
            assert server.ask("/v1/models", key=KEY)["data"]
            said = server.ask("/v1/completions", {"prompt": "nobody logs this", "max_tokens": 2}, KEY)
            assert said["choices"]
            command = f"/proc/{server.process.pid}/cmdline"
            with open(command, "rb") as found:  # noqa: PTH123
                assert KEY.encode() not in found.read()
            server.end()
            log = "".join(server.log)
            assert KEY not in log
            assert "nobody logs this" not in log


def test_what_keeps_it_from_starting_is_named(hotset, tmp_path):
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = [
            (str(broken),),
            (str(tmp_path / "absent.gguf"),),
            ("demo", "--port", str(taken.getsockname()[1])),
            ("demo", "--host", "999.1.1.1"),
            ("demo", "--parallel", "0"),
            ("demo", "--api-key-file", str(tmp_path / "absent")),
            ("demo", "--chat-template-file", str(tmp_path / "absent")),
        ]
        for case in cases:
            done = hotset("serve", *case, *CPU)
            assert done.returncode == 1, (case, done.stderr)
            assert "error:" in done.stderr
            assert "Traceback" not in done.stderr
