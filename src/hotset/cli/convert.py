"""`hotset convert`: a checkpoint (or another GGUF file) as a GGUF file with chosen formats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from hotset.bench.units import size_text
from hotset.cli import options
from hotset.cli.output import loading_bar, put, put_json, say
from hotset.errors import InputError


def convert(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The GGUF file to write.", show_default=False)] = "",
    experts: Annotated[
        str | None, typer.Option("--experts", metavar="FORMAT", help="Format of the experts: F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0 or MXFP4.", show_default="as in the model")
    ] = None,
    rest: Annotated[
        str | None, typer.Option("--rest", metavar="FORMAT", help="Format of all other matrices but the routers.", show_default="as in the model")
    ] = None,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Write a model as one GGUF file.

    Vectors, routers and convolutions stay as they are. A matrix whose rows are no whole number of a format's blocks takes Q8_0 or F16
    instead, which is said.
    """
    del verbose  # read where bugs are reported
    from hotset.checkpoint import open_model
    from hotset.checkpoint.convert import choices
    from hotset.checkpoint.convert import convert as write
    from hotset.engine.loading import resolve

    if not output:
        raise InputError("no file to write was named; give it with -o")
    target = Path(output)
    if target.exists():
        raise InputError(f"-o {output}: is there already; name another file, or move that one away")
    upper = [None if name is None else name.upper() for name in (experts, rest)]
    with loading_bar() as progress:
        path = resolve(options.chosen_model(model, model_option, hf_repo), progress)
        with open_model(path) as file:
            chosen = choices(file, *upper)
            write(file, target, chosen, lambda done, total: progress("tensors", done, total))
    for wanted, n in sorted(Counter(c.wanted for c in chosen if c.wanted).items()):
        kinds = ", ".join(sorted({c.kind.name for c in chosen if c.wanted == wanted}))
        say(f"note: rows of {n:,} matrices are no whole number of {wanted}'s blocks; they are {kinds}")
    size = target.stat().st_size
    put(f"{target}: {size_text(size)}, {len(chosen):,} tensors\n")
    if json:
        put_json({"file": str(target), "bytes": size, "formats": dict(Counter(c.kind.name for c in chosen))})
