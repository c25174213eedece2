"""Tables in Markdown that can be read in a terminal too: columns are as wide as their widest cell."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Cells of a column of numbers, which is set to the right.
NUMBER = re.compile(r"-?|[+-]?[\d.,]+( .*)?")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with its header; columns of numbers are set to the right."""
    columns = list(zip(*([cell.replace("|", "\\|") for cell in row] for row in (head, *rows)), strict=True))
    padded = [column(cells) for cells in columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in zip(*padded, strict=True))


def column(cells: Sequence[str]) -> list[str]:
    """One column with its rule below the first cell."""
    head, *rest = cells
    width = max(3, *map(len, cells))
    is_right = bool(rest) and all(NUMBER.fullmatch(cell) for cell in rest)
    set_out = str.rjust if is_right else str.ljust
    rule = "-" * (width - 1) + ":" if is_right else "-" * width
    return [set_out(head, width), rule, *(set_out(cell, width) for cell in rest)]
