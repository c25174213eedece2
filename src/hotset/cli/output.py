"""Where the words go: human text to stderr, results to stdout."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Where no terminal says how wide it is, lines of a table stay whole.
LOG_WIDTH = 140


def say(text: str = "") -> None:
    """One line for the person at the terminal."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def put(text: str) -> None:
    """A result, or a piece of one."""
    sys.stdout.write(text)
    sys.stdout.flush()


def put_json(value: Any) -> None:
    """One JSON value on a line of its own, plain ASCII; what JSON cannot say (infinities) becomes null."""
    put(json.dumps(plain(value), allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def printable(text: str) -> str:
    """Text from a file, safe to show: control characters are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def show_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """A table on stderr; `right` are the columns set to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False)
    for i, header in enumerate(headers):
        table.add_column(header, justify="right" if i in right else "left", header_style="dim", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    width = None if sys.stderr.isatty() else LOG_WIDTH
    Console(file=sys.stderr, highlight=False, width=width).print(table)


def one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {printable(str(message))}")


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Warnings are one line each, without the place in our source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = one_line
        yield


@contextmanager
def held_warnings() -> Iterator[None]:
    """Warnings are shown at the end, so that the first line can be another."""
    with warnings.catch_warnings(record=True) as caught:
        yield
    for warning in caught:
        one_line(warning.message)


@contextmanager
def loading_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for `load(progress=...)`, only on a terminal that can take it away again."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    if not console.is_terminal or console.is_dumb_terminal:
        yield said_once()
        return
    text = TextColumn("{task.description}")
    columns = (SpinnerColumn("line"), text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, Any] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage_text(stage), total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield advance


def said_once() -> Callable[[str, int, int], None]:
    """In the place of a bar: one line where there is something to fetch, as that takes long."""
    from hotset.bench.units import size_text

    said = False

    def note(stage: str, done: int, total: int) -> None:
        nonlocal said
        if stage == "download" and done < total and not said:
            said = True
            say(f"downloading {size_text(total)} from Hugging Face")

    return note


def stage_text(stage: str) -> str:
    return "downloading" if stage == "download" else f"loading {stage}"
