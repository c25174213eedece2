"""What hotset raises: one family, every message names the thing, the value or limit, and the way out."""

from __future__ import annotations

from os import PathLike, fspath


class HotsetError(Exception):
    """Base of every error that hotset raises on purpose; the CLI prints it without a traceback and exits with 1."""


class FileError(HotsetError):
    """A model file that cannot be used: missing, damaged, cut off, or written for something else.

    The parts of the message are kept: `path`, `thing` (a key, tensor or field), `value` (what the file holds) and `hint` (the way out).
    """

    def __init__(
        self,
        path: str | PathLike[str],
        thing: str,
        problem: str,
        *,
        value: object = None,
        hint: str = "download or convert the file again",
    ) -> None:
        self.path = fspath(path)
        self.thing = thing
        self.problem = problem
        self.value = value
        self.hint = hint
        super().__init__(f"{self.path}: {thing}: {problem}; {hint}")


class UnsupportedError(FileError):
    """A sound file that this build cannot run: an unknown architecture, tensor type, tokenizer or setting."""


class InputError(HotsetError, ValueError):
    """An argument out of range or of the wrong kind: names the argument, its value and what is accepted."""


class ContextError(InputError):
    """A prompt that leaves no room in the context: `n_prompt_tokens` and `n_ctx` are the two lengths."""

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx
        super().__init__(
            f"the prompt has {n_prompt_tokens} tokens and the context {n_ctx}; shorten it or raise --ctx-size (n_ctx)"
        )


class BusyError(HotsetError):
    """More requests wait than may: `retry_after_s` is when to ask again."""

    def __init__(self, n_waiting: int, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"{n_waiting} requests are waiting already; try again in {retry_after_s} s")


class EngineStoppedError(HotsetError):
    """The engine stopped before a request was done: it failed, or is shutting down."""


class PlacementError(HotsetError):
    """The model does not fit the memory allowed: names what was needed, what there is and what to change."""


class DeviceError(HotsetError):
    """The device asked for is missing or lacks something (driver, compiler, page-locking): names it and the way out."""
