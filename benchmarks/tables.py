"""Tables in Markdown, and the places of a page that a script fills."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill(page: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- begin NAME -->` and `<!-- end NAME -->` of a page."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no place for {name}")
    page.write_text(before + begin + text + end + after, encoding="utf-8")
