"""Write docs/cli.md, the reference of the command line, from the commands' own help; with --check only say whether it is up to date."""  # noqa: INP001

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hotset.cli.app import app

PAGE = Path(__file__).with_name("cli.md")
HEAD = "# Command line\n\nMade from the commands' own help by `make docs`: change the help, not this page.\n"


def page() -> str:
    """All commands; laid out here, as the layout of `--help` is Typer's and changes with its version."""
    group: Any = typer.main.get_command(app)
    commands = [section("hotset COMMAND", group)]
    commands += [section(f"hotset {name} [OPTIONS] {given(c)}", c) for name, c in group.commands.items()]
    return HEAD + "".join(commands)


def given(command: Any) -> str:
    """What stands behind the options."""
    return " ".join(p.metavar for p in command.params if p.param_type_name == "argument")


def section(usage: str, command: Any) -> str:
    rows = "".join(f"| {' | '.join(row(p))} |\n" for p in command.params if p.param_type_name == "option")
    paragraphs = "\n\n".join(" ".join(part.split()) for part in command.help.strip().split("\n\n"))
    return f"\n## `{usage}`\n\n{paragraphs}\n\n| option | what | default |\n| --- | --- | --- |\n{rows}"


def row(option: Any) -> Iterator[str]:
    value = f" {option.metavar}" if option.metavar else ""
    yield escaped("`" + ", ".join(option.opts) + value + "`")
    yield escaped(option.help)
    yield escaped(default_text(option))


def default_text(option: Any) -> str:
    if isinstance(option.show_default, str):
        return str(option.show_default)
    known = option.show_default is not False and option.default not in (None, False, "")
    return f"`{option.default}`" if known else ""


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write(f"{PAGE} is not what the commands say; run: make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
