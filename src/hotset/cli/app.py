"""The commands together, and what becomes of errors: a message and exit code 1 for the user's, a notice and 2 for a bug of ours."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from hotset.cli import bench, convert, doctor, inspect, perplexity, plan, run, serve, simulate, trace
from hotset.cli.output import one_line_warnings, say
from hotset.errors import HotsetError
from hotset.version import __version__

USER_ERROR = 1
BUG = 2
INTERRUPTED = 130
# Newer Typers carry a click of their own, older ones use the package: the class is found through one that both export.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="hotset",
    help="Run mixture-of-experts language models that do not fit in VRAM.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", short_help="Continue a text, or chat.")(run.run)
app.command("convert", short_help="Write a model as a GGUF file.")(convert.convert)
app.command("serve", short_help="Serve the model to other programs.")(serve.serve)
app.command("inspect", short_help="Show what a model file is.")(inspect.inspect)
app.command("plan", short_help="Say what would fit and how fast it would be.")(plan.plan)
app.command("doctor", short_help="Measure this machine once.")(doctor.doctor)
app.command("bench", short_help="Measure speed.")(bench.bench)
app.command("perplexity", short_help="Score a text.")(perplexity.perplexity)

app.command("trace", short_help="Record which experts a run picks.")(trace.trace)
app.command("simulate", short_help="Say what cache policies and sizes would have hit.")(simulate.simulate)


def show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"hotset {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def hotset(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Run mixture-of-experts language models that do not fit in VRAM."""
    del version  # its callback has answered
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line `args` (by default the process's own); returns the exit code."""
    given = list(sys.argv[1:] if args is None else args)
    replace_unknown_characters()
    with one_line_warnings():
        return _main(given)


def _main(args: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("hotset", list(args)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as error:
        return error.exit_code
    except UsageError as error:
        return usage_problem(error)
    except HotsetError as error:
        say(f"error: {error}")
        return USER_ERROR
    except BrokenPipeError:  # the reader, `head` for one, has what it wanted
        leave_stdout()
        return 0
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - what is left is a bug of ours, and is said to be one
        return bug(error, verbose=not {"-v", "--verbose"}.isdisjoint(args))
    return 0


def usage_problem(error: BaseException) -> int:
    path = error.ctx.command_path if error.ctx else "hotset"  # type: ignore[attr-defined]
    say(f"error: {error.format_message()}")  # type: ignore[attr-defined]
    say(f"see: {path} --help")
    return USER_ERROR


def bug(error: Exception, *, verbose: bool) -> int:
    if verbose or os.environ.get("HOTSET_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    say(f"bug in hotset {__version__}: {type(error).__name__}: {error}")
    say("please report it with the traceback that -v (or HOTSET_DEBUG=1) shows")
    return BUG


def leave_stdout() -> None:
    """Point stdout elsewhere, or the interpreter would complain of the broken pipe when it closes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def replace_unknown_characters() -> None:
    """Characters that the terminal's encoding lacks are replaced, not errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
