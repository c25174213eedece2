"""An answer as it streams, and what Ctrl-C does to it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from hotset.engine.engine import Generation, Stream


class Interrupt:
    """While it is entered the first Ctrl-C sets `asked` and calls `then`; the second one is a KeyboardInterrupt as usual."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.asked = False
        self._then = then

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._then()

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)


def stream_answer(stream: Stream, write: Callable[[str], None], interrupt: Interrupt) -> Generation:
    """Write the pieces as they come; an interrupt stops between two tokens, so that the session stays whole."""
    for piece in stream:
        write(piece)
        if interrupt.asked:
            stream.close()
            break
    if not stream.result.text.endswith("\n"):
        write("\n")
    return stream.result


def rates(answers: Iterable[Generation]) -> tuple[float, float]:
    """Tokens per second of all prompts and of all decoding."""
    done = list(answers)
    prompt = sum(a.prompt_tokens - a.reused_tokens for a in done)
    decode = sum(max(0, len(a.tokens) - 1) for a in done)
    return _rate(prompt, sum(a.prompt_s for a in done)), _rate(decode, sum(a.decode_s for a in done))


def _rate(n: int, seconds: float) -> float:
    return n / seconds if seconds else 0.0


def answer_facts(answer: Generation) -> dict[str, Any]:
    """What `--json` prints of an answer."""
    return {
        "text": answer.text,
        "tokens": list(answer.tokens),
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        "prompt_tokens": answer.prompt_tokens,
        "reused_tokens": answer.reused_tokens,
        "prompt_s": answer.prompt_s,
        "decode_s": answer.decode_s,
        "prompt_tokens_per_s": answer.prompt_tokens_per_s,
        "tokens_per_s": answer.tokens_per_s,
    }
