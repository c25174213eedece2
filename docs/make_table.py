"""Write README's table of architectures from what hotset supports; with --check only say whether it is up to date."""  # noqa: INP001

from __future__ import annotations

import sys
from pathlib import Path

from hotset.model.listing import architecture_rows

PAGE = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- architectures: made by docs/make_table.py -->\n", "<!-- end of architectures -->\n"


def table() -> str:
    rows = "".join(f"| `{name}` | {models} | {status} |\n" for name, models, status in architecture_rows())
    return f"| architecture | models | runs on |\n| --- | --- | --- |\n{rows}"


def page() -> str:
    """README with the table between its two marks made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write(f"{PAGE} does not list the architectures that hotset supports; run: make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
