"""The chat in a real terminal: a pseudo-terminal whose Ctrl-C the kernel turns into a signal."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time

import pytest

PATIENCE_S = 600
# An answer is stopped while it streams; a prompt is shown a moment before the line editor listens to signals.
SETTLE_S = 0.5
CTRL_C = b"\x03"
# Greedy, the demo model falls into a loop; the context is long enough that it does not end before it is stopped.
COMMAND = ["-m", "hotset", "run", "demo", "--device", "cpu", "-t", "1", "-c", "16384", "--temp", "0"]


class Terminal:
    """A process in a terminal of its own."""

    def __init__(self, args: list[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(sys.executable, [sys.executable, *args])  # noqa: S606 - in the child of the fork
        self.shown = ""
        self.is_open = True

    def type(self, keys: bytes) -> None:
        time.sleep(SETTLE_S)
        os.write(self.fd, keys)

    def read(self) -> None:
        """Wait for more to be shown, or for the end of the process."""
        if not select.select([self.fd], [], [], PATIENCE_S)[0]:
            pytest.fail(f"nothing more was shown within {PATIENCE_S} s: {self.shown[-2000:]}")
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # what Linux says of a terminal whose other side is closed
            data = b""
        self.is_open = bool(data)
        self.shown += data.decode("utf-8", "replace")

    def read_until(self, text: str, start: int = 0) -> int:
        """Wait until `text` is shown after position `start`; returns where it ends."""
        while (at := self.shown.find(text, start)) < 0:
            self.read()
            if not self.is_open:
                pytest.fail(f"the process ended before {text!r} was shown: {self.shown[-2000:]}")
        return at + len(text)

    def exit_code(self) -> int:
        """Read to the end and wait for the process."""
        while self.is_open:
            self.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal():
    opened = Terminal(COMMAND)
    yield opened
    try:
        os.kill(opened.pid, signal.SIGKILL)
        os.waitpid(opened.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    os.close(opened.fd)


def test_ctrl_c_stops_the_answer_and_a_second_one_leaves(terminal):
    at = terminal.read_until("> ")
    terminal.type(b"Hello\n")
    at = terminal.read_until("Hello\r\n", at)
    terminal.read()
    terminal.type(CTRL_C)
    at = terminal.read_until("[stopped]", at)
    terminal.read_until("> ", at)
    terminal.type(CTRL_C)
    assert terminal.exit_code() == 0
    assert "expert cache (lrfu:16" in terminal.shown
    assert "Traceback" not in terminal.shown


def test_the_chat_goes_on_after_a_stopped_answer_and_exit_leaves(terminal):
    at = terminal.read_until("> ")
    terminal.type(b"Hello\n")
    at = terminal.read_until("Hello\r\n", at)
    terminal.read()
    terminal.type(CTRL_C)
    at = terminal.read_until("> ", terminal.read_until("[stopped]", at))
    terminal.type(b"/clear\n")
    at = terminal.read_until("> ", terminal.read_until("cleared", at))
    terminal.type(b"/exit\n")
    assert terminal.exit_code() == 0


def test_the_end_of_input_leaves(terminal):
    terminal.read_until("> ")
    terminal.type(b"\x04")
    assert terminal.exit_code() == 0
