"""`hotset bench`: prompt and decode speed of one or several expert caches, in llama-bench's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli import options
from hotset.cli.output import put, put_json, say
from hotset.errors import InputError

if TYPE_CHECKING:
    from hotset.bench.report import Line


def bench(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    n_prompt: Annotated[
        str, typer.Option("-p", "--n-prompt", metavar="N,...", help="Tokens of the prompt; a list (512,2048) or range (128-2048*2) is measured one after another; 0: no prompt test.")
    ] = "512",
    n_gen: Annotated[str, typer.Option("-n", "--n-gen", metavar="N,...", help="Tokens to decode, likewise; 0: no decode test.")] = "128",
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Runs that count.")] = 5,
    output: Annotated[str, typer.Option("-o", "--output", metavar="md|csv|json|jsonl", help="The form of the results; the last line of stdout is JSON whatever the form.")] = "md",
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Text to read and to continue.", show_default="a bundled one")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Empty the expert cache before every run.")] = False,
    routing: Annotated[
        str | None, typer.Option("--routing", metavar="FILE|random|repeat", help="Decode with the picks of a recorded trace (of `hotset trace`, .npz or CSV), or with random or always the same ones, in place of the router's.", show_default="the router")
    ] = None,
    bus_factor: Annotated[int, typer.Option("--bus-factor", metavar="N", help="Fetch every expert N times, which imitates a bus N times slower; GPU only.")] = 1,
    threads: Annotated[
        str | None, typer.Option("-t", "--threads", metavar="N,...", help="CPU threads; a list (1,2,4) or range (1-8*2) is measured side by side.", show_default="physical cores")
    ] = None,
    device: options.DeviceOption = "auto",
    expert_cache: Annotated[
        str, typer.Option("--expert-cache", metavar="SIZE,...", help="Sizes of the expert cache, as in 25%,off or 10%-50%+10%, measured side by side.")
    ] = "auto",
    vram: options.VramOption = None,
    policy: Annotated[str, typer.Option("--policy", metavar="NAME,...", help="Which experts stay in the cache: lrfu:HALF_LIFE, product, lru, lfu, static; several are measured side by side.")] = "lrfu:16",
    pre: options.PreOption = None,
    ubatch_size: options.UbatchOption = None,
    cache_type_k: options.CacheTypeKOption = "f16",
    cache_type_v: options.CacheTypeVOption = "f16",
    no_graph: options.NoGraphOption = False,
    no_prefetch: options.NoPrefetchOption = False,
    page_lock: options.PageLockOption = None,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Measure prompt reading and decoding: mean and standard deviation, the expert cache's hit rate, and the share of the ceiling.

    Several sizes and policies are arms on one loaded model, which read and draw the same tokens. A first run of each test warms up and is
    left out; one on an empty expert cache is reported apart. At the end stands whether the expert cache helped, and if not, why.
    """
    del verbose  # read where bugs are reported
    from hotset.bench.arms import sweep
    from hotset.bench.report import FORMATS
    from hotset.bench.runner import Plan
    from hotset.cli.measuring import Measuring
    from hotset.cli.opening import Choices

    if output not in FORMATS:
        raise InputError(f"-o {output!r} is not one of {', '.join(FORMATS)}")
    if bus_factor < 1:
        raise InputError(f"--bus-factor {bus_factor}: give 1 or more")
    plan = Plan(tuple(options.numbers(n_prompt, "-p")), tuple(options.numbers(n_gen, "-n")), repetitions, cold)
    counts = options.numbers(threads, "-t") if threads else [None]
    arms = sweep(options.spread(expert_cache, "--expert-cache"), options.spread(policy, "--policy"), counts)
    path = options.chosen_model(model, model_option, hf_repo)
    text = options.read_text(file, "-f") if file else None
    choices = Choices(
        path, device=device, vram=vram, n_ctx=plan.n_ctx, threads=arms[0].threads, pre=pre, n_ubatch=ubatch_size, graph=not no_graph, prefetch=not no_prefetch, page_lock=page_lock,
        cache_type_k=cache_type_k, cache_type_v=cache_type_v,
        why_n_ctx="what the longest test takes",
    )  # fmt: skip
    alone = len(arms) == 1 and bus_factor == 1
    if alone:
        choices = replace(choices, expert_cache=arms[0].size, policy=str(arms[0].policy))
    else:
        choices = replace(choices, expert_cache="off", arms=", ".join(dict.fromkeys(map(str, arms))))
    measuring = Measuring(choices, plan, arms, text, routing, bus_factor, alone=alone)
    lines: list[Line] = []
    try:
        for line in measuring.lines():
            lines.append(line)  # noqa: PERF402 - what was measured before an error is kept
    finally:
        if lines:
            show(lines, output, json=json)


def show(lines: Sequence[Line], form: str, *, json: bool) -> None:
    """The table, the verdict in words, and on the last line everything as JSON; the last line of "jsonl" is JSON as it is."""
    from hotset.bench.report import FORECAST, GPU_ONLY, SWEPT, Table
    from hotset.bench.verdict import verdicts
    from hotset.cli.bench_texts import last_lines, varies

    lines = [replace(line, verdict=text) for line, text in zip(lines, verdicts(lines), strict=True)]
    swept = varies([line.setting for line in lines])
    gpu = GPU_ONLY if any(line.setting.backend == "CUDA" for line in lines) else ()
    forecast = (FORECAST,) if any(line.forecast for line in lines) else ()
    table = Table(form, [*(name for name in SWEPT if swept[name]), *gpu, *forecast], lines)
    put(table.text)
    for text in last_lines(lines):
        say(text)
    if json or form != "jsonl":
        put_json(table.facts)
