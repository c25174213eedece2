"""`hotset trace`: record which experts a run picks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hotset.bench.units import percent_text, size_text
from hotset.cli import options
from hotset.cli.opening import Choices, engine_facts, open_engine
from hotset.cli.output import put, put_json, say
from hotset.config import SamplingParams
from hotset.errors import InputError


def trace(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The text.", show_default=False)] = None,
    hf_repo: options.HubOption = None,
    file: Annotated[str | None, typer.Option("-f", "--file", metavar="FILE", help="The text of a file.", show_default=False)] = None,
    decode: Annotated[int, typer.Option("-n", "--decode", metavar="N", help="Decode steps behind each piece of text; 0: none.")] = 128,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The trace file to write.")] = "run.trace",
    temp: Annotated[float, typer.Option(metavar="X", help="Temperature; 0 takes the most probable token.")] = 0.8,
    seed: Annotated[int, typer.Option("-s", "--seed", metavar="N", help="The same seed gives the same text.", show_default="0")] = 0,
    ctx_size: options.ContextOption = None,
    threads: options.ThreadsOption = None,
    device: options.DeviceOption = "auto",
    expert_cache: options.CacheOption = "auto",
    vram: options.VramOption = None,
    policy: options.PolicyOption = "lrfu:16",
    pre: options.PreOption = None,
    no_graph: options.NoGraphOption = False,
    no_prefetch: options.NoPrefetchOption = False,
    page_lock: options.PageLockOption = None,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Record the picks of every layer for the tokens of a text and for those decoded behind it; `hotset simulate` replays them.

    A text longer than the context is cut into pieces, each an answer of its own. The file is usable however the run ends.
    """
    del verbose  # read where bugs are reported
    from hotset.checkpoint import open_model
    from hotset.cli.run import given_text
    from hotset.engine.loading import resolve
    from hotset.engine.record import RING_STEPS, record
    from hotset.experts.trace_file import check_output

    text = given_text(prompt, file)
    if not text:
        raise InputError("no text was given; give it with -p or name a file with -f")
    if decode < 0:
        raise InputError(f"--decode {decode}: give 0 or more tokens")
    path = Path(output).expanduser()
    check_output(path)
    sampling = SamplingParams(temperature=temp, seed=seed, max_tokens=decode + 1)
    choices = Choices(
        options.chosen_model(model, model_option, hf_repo), device=device, expert_cache=expert_cache, policy=policy, vram=vram, n_ctx=ctx_size,
        threads=threads, pre=pre, graph=not no_graph, prefetch=not no_prefetch, page_lock=page_lock, record_steps=RING_STEPS,
    )  # fmt: skip
    engine = open_engine(choices)
    if not engine.runner.shape.n_layers:
        raise InputError(
            f"{engine.config.name} is a dense model and has no experts to trace; choose a mixture of experts"
        )
    prompts = pieces(engine.tokenize(text), engine.n_ctx - decode - 1, decode)
    with open_model(resolve(choices.model)) as source:
        model_hash = source.header_hash
    try:
        stats = record(
            engine, prompts, path, model_hash=model_hash, n_decode=decode, sampling=sampling,
            progress=lambda n: say(f"answer {n} of {len(prompts)}"),
        )  # fmt: skip
    except KeyboardInterrupt:
        say(f"what was recorded so far can be replayed: hotset simulate {output}")
        raise
    size = size_text(path.stat().st_size)
    put(f"{output}: {stats.prompt.tokens:,} tokens of text and {stats.tokens:,} decoded, {size}\n")
    said = {"prompts": stats.prompt.hit_rate, "decoding": stats.hit_rate}
    rates = ", ".join(f"{percent_text(rate)} in {what}" for what, rate in said.items() if rate is not None)
    say(f"expert cache ({stats.policy}), empty at first: hit rate {rates or 'not known, for no expert was picked'}")
    say(f"replay it through other policies and sizes with: hotset simulate {output}")
    if json:
        put_json({**engine_facts(engine, choices), "trace": output, "answers": len(prompts), "stats": stats.as_dict()})


def pieces(tokens: list[int], room: int, n_decode: int) -> list[list[int]]:
    """The text in pieces that leave room for what is decoded."""
    if not tokens:
        raise InputError("the text is empty; give at least one token of it")
    if room < 1:
        raise InputError(f"--decode {n_decode} leaves no room for text in the context; raise --ctx-size")
    return [tokens[at : at + room] for at in range(0, len(tokens), room)]
