"""The options that several commands share, spelled as llama.cpp spells them where the meaning is the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from hotset.errors import InputError

MAX_RANGE = 64

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help='A .gguf file (any part of a split one), user/repo[:quant] of Hugging Face, or "demo".',
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("-m", "--model", metavar="MODEL", help="The same as MODEL.", show_default=False)
]
HubOption = Annotated[
    str | None,
    typer.Option(
        "-hf",
        "--hf-repo",
        metavar="USER/REPO[:QUANT]",
        help="A model of Hugging Face, fetched into the cache that its libraries share; quant Q4_K_M, else Q8_0, else what there is.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option("--device", metavar="auto|cuda|cpu", help="Where to compute; auto takes the GPU if one can be used."),
]
CacheOption = Annotated[
    str,
    typer.Option(
        "--expert-cache",
        metavar="SIZE",
        help="Size of the expert cache: 6GiB, 25% of each layer's experts, 16slots per layer, auto or off.",
    ),
]
VramOption = Annotated[
    str | None,
    typer.Option(
        "--vram", metavar="SIZE", help="All that may be put on the GPU, as in 8GiB.", show_default="what is free"
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", metavar="NAME", help="Which experts stay in the cache: lrfu:HALF_LIFE, product, lru, lfu or static."
    ),
]
PreOption = Annotated[
    str | None,
    typer.Option(
        "--pre",
        metavar="NAME",
        help="How the tokenizer splits text, where the file names it wrongly.",
        show_default=False,
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "-c", "--ctx-size", metavar="N", help="Context in tokens.", show_default="4096, or the model's if less"
    ),
]
UbatchOption = Annotated[
    int | None,
    typer.Option(
        "-ub",
        "--ubatch-size",
        metavar="N",
        help="Tokens of a prompt that the GPU computes at once.",
        show_default="by VRAM, at most 4096",
    ),
]
CacheTypeKOption = Annotated[
    str,
    typer.Option(
        "-ctk", "--cache-type-k", metavar="f16|q8_0", help="How keys are kept; q8_0 takes about half the memory."
    ),
]
CacheTypeVOption = Annotated[
    str, typer.Option("-ctv", "--cache-type-v", metavar="f16|q8_0", help="How values are kept, likewise.")
]
NoGraphOption = Annotated[
    bool,
    typer.Option("--no-graph", help="Launch the kernels of a GPU step one by one: slower, for looking into trouble."),
]
NoPrefetchOption = Annotated[
    bool,
    typer.Option(
        "--no-prefetch", help="Bring no experts to the GPU before their layer has picked them; the text is the same."
    ),
]
PageLockOption = Annotated[
    str | None,
    typer.Option(
        "--page-lock",
        metavar="SIZE|off",
        help="How much of the experts may be page-locked for the GPU; the rest goes through a buffer, slower.",
        show_default="all",
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("-t", "--threads", metavar="N", help="CPU threads.", show_default="physical cores")
]
NoWarmStartOption = Annotated[
    bool,
    typer.Option("--no-warm-start", help="Begin with an empty expert cache, and learn nothing for the next start."),
]
DealOption = Annotated[
    bool,
    typer.Option(
        "--slots-from-profile",
        help="Deal slots to layers by what earlier runs with this option picked, and record picks.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value on the last line of stdout.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Say more; show a bug's traceback.")]


def chosen_model(argument: str | None, option: str | None, repo: str | None) -> str:
    """The model, given in one of three ways."""
    given = [model for model in (argument, option, repo and f"hf:{repo}") if model is not None]
    if len(given) != 1:
        how = f"{('no', 'no', 'two', 'three')[len(given)]} model{'s were' if given else ' was'}"
        raise InputError(f'{how} given; name one: the path of a .gguf file, user/repo, or "demo" for the bundled model')
    return given[0]


def read_text(path: str, option: str) -> str:
    """A file's text, with its line ends as they are."""
    try:
        return Path(path).expanduser().read_bytes().decode()
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}; give the path of a text file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{option} {path}: no UTF-8 at byte {error.start:,}; convert the file to UTF-8") from error


def spread(text: str, option: str) -> list[str]:
    """Read a list with ranges: "10%,25%-75%+25%" or "1-8*2"; first and last are in it, the step is +1 where none is given.

    "25%..75%:25%", as `hotset simulate` writes it, is the same as "25%-75%+25%".
    """
    return list(dict.fromkeys(value for part in text.split(",") for value in range_of(part.strip(), option)))


def range_of(part: str, option: str) -> list[str]:
    if ".." in part:
        part = part.replace("..", "-", 1).replace(":", "+", 1)
    found = re.fullmatch(r"(\d{1,9})([a-zA-Z%]*)-(\d{1,9})([a-zA-Z%]*)(?:([+*])(\d{1,9})([a-zA-Z%]*))?", part)
    if not found:
        return [part]
    first, unit, last, last_unit, sign, step, step_unit = found.groups()
    values = [int(first)]
    by = int(step or 1)
    grows = by > 1 and values[0] > 0 if sign == "*" else by > 0
    if last_unit != unit or (step_unit or "") not in ("", unit) or int(last) < values[0] or not grows:
        raise InputError(f"{option} {part!r} is no range; write it as in 10%-50%+10% or 8slots-64slots*2")
    while values[-1] <= int(last):
        if len(values) > MAX_RANGE:
            raise InputError(f"{option} {part!r} has more than {MAX_RANGE} values; take a larger step")
        values.append(values[-1] * by if sign == "*" else values[-1] + by)
    return [f"{value}{unit}" for value in values[:-1]]


def numbers(text: str, option: str) -> list[int]:
    """Read a list as in "1,2,4" or "1-4"."""
    parts = spread(text, option)
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"{option} {text!r} is no list of numbers; write them with commas, as in 1,2,4")
    return [int(part) for part in parts]
