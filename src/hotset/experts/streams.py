"""Work of the device that runs beside other work: in a captured step, branches of the graph. On the CPU everything runs in its order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A stream of its own, another than that of `apart` and than the one it forks from."""

    def __init__(self, device: torch.device, apart: SideStream | None = None) -> None:
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._apart = apart
        self._forked = False

    @contextmanager
    def fork(self) -> Iterator[None]:
        """What is launched inside runs after all that was launched before, and beside what follows up to `join` or a mark set inside."""
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream()
        # PyTorch deals its 32 streams out in turns, to captures as well: now and then this one is in use.
        while self.stream == current or (self._apart and self.stream == self._apart.stream):
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._forked = True
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """What follows runs after all that was launched in `fork`."""
        # A step that is being captured may not wait for a stream that it never forked: models without experts.
        if self.stream is not None and self._forked:
            self._forked = False
            torch.cuda.current_stream().wait_stream(self.stream)


class Mark:
    """A place in a stream that another can wait for."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def set(self) -> None:
        """Mark what was launched so far in the current stream."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """What follows in the current stream runs after what was marked last."""
        if self._event is not None:
            self._event.wait()
