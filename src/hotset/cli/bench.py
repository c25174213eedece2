"""`hotset bench`: prompt and decode speed, in llama-bench's table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli import options
from hotset.cli.opening import Choices, open_engine, slots_text
from hotset.cli.output import loading_bar, put, put_json, say
from hotset.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from hotset.bench.report import Line, Setting
    from hotset.bench.runner import Plan, Result, Tokens
    from hotset.cli.inspection import Inspection
    from hotset.engine.engine import Engine


def bench(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    n_prompt: Annotated[int, typer.Option("-p", "--n-prompt", metavar="N", help="Tokens of the prompt; 0: no prompt test.")] = 512,
    n_gen: Annotated[int, typer.Option("-n", "--n-gen", metavar="N", help="Tokens to decode; 0: no decode test.")] = 128,
    repetitions: Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Runs that count.")] = 5,
    output: Annotated[str, typer.Option("-o", "--output", metavar="md|csv|json|jsonl", help="The form of the results.")] = "md",
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Text to read and to continue.", show_default="a bundled one")
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Empty the expert cache before every run.")] = False,
    threads: Annotated[
        str | None, typer.Option("-t", "--threads", metavar="N,...", help="CPU threads; several are measured in turn.", show_default="physical cores")
    ] = None,
    device: options.DeviceOption = "auto",
    expert_cache: Annotated[
        str, typer.Option("--expert-cache", metavar="SIZE,...", help="Sizes of the expert cache, measured in turn.")
    ] = "auto",
    vram: options.VramOption = None,
    policy: options.PolicyOption = "lrfu:16",
    pre: options.PreOption = None,
    ubatch_size: options.UbatchOption = None,
    no_graph: options.NoGraphOption = False,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Measure prompt reading and decoding: mean and standard deviation, the expert cache's hit rate, and the share of the ceiling.

    A first run of each test warms up and is left out; one on an empty expert cache is reported apart.
    """
    del verbose  # read where bugs are reported
    from hotset.bench.report import FORMATS, Table
    from hotset.bench.runner import Plan
    from hotset.checkpoint import open_model
    from hotset.cli.inspection import inspect_file
    from hotset.engine.loading import resolve

    if output not in FORMATS:
        raise InputError(f"-o {output!r} is not one of {', '.join(FORMATS)}")
    plan = Plan(n_prompt, n_gen, repetitions, cold)
    counts = options.numbers(threads, "-t") if threads else [None]
    sizes = [size.strip() for size in expert_cache.split(",")]
    path = options.chosen_model(model, model_option, hf_repo)
    text = options.read_text(file, "-f") if file else None
    settings = [
        Choices(
            path, device=device, expert_cache=size, policy=policy, vram=vram, n_ctx=plan.n_ctx, threads=n, pre=pre, n_ubatch=ubatch_size, graph=not no_graph,
            why_n_ctx="what the longest test takes",
        )
        for size, n in product(sizes, counts)
    ]  # fmt: skip
    with loading_bar() as progress:
        file_path = resolve(path, progress)
    with open_model(file_path) as opened:
        inspection = inspect_file(opened)
    swept = [name for name, values in (("threads", counts), ("cache", sizes)) if len(values) > 1]
    table = Table(output, swept)
    for choices in settings:
        for line in measure(choices, plan, text, inspection):
            put(table.add(line))
            say(first_line(line.result))
    if json or output == "json":
        put_json(table.facts)


def measure(choices: Choices, plan: Plan, text: str | None, inspection: Inspection) -> Iterator[Line]:
    """All tests under one setting; the model is loaded anew, so that no setting profits from one before it."""
    from hotset.bench.report import Line, Setting
    from hotset.bench.runner import Bench
    from hotset.host.threads import checked_threads

    engine = open_engine(choices)
    n_threads = checked_threads(choices.threads)
    stats = engine.stats()
    setting = Setting(
        model=f"{engine.config.architecture} {engine.config.name}",
        size=inspection.file.total_bytes,
        params=inspection.n_parameters,
        backend=engine.device.upper(),
        threads=n_threads,
        cache=f"{choices.expert_cache}: {slots_text(engine)}",
        policy=stats.policy if stats.active else f"{stats.policy} (counted)",
        active=stats.active,
        per_token=inspection.needs.traffic.per_token if inspection.needs else 0,
        read_rate=memory_rate(n_threads) if engine.device == "cpu" else None,
    )
    show_card(setting)
    tokens = bench_tokens(engine, text)
    if tokens.repeats_within(plan.n_prompt):
        say(f"note: the text is shorter than {plan.n_prompt:,} tokens, so prompts repeat it; give a longer one with -f")
    runs = Bench(engine, tokens, plan)
    say(f"warm-up (compiling, first touch of memory), not counted: {runs.warm_up():.2f} s")
    for result in runs.results():
        yield Line(setting, result)


def show_card(setting: Setting) -> None:
    """What the machine and the model allow, before anything is measured."""
    from hotset.bench.units import size_text

    say(
        f"a token reads {size_text(setting.per_token)} of weights (dense ones and picked experts; keys and values come on top)"
    )
    if setting.read_rate and setting.ceiling:
        say(
            f"plain read of memory with {setting.threads} threads, measured now: {setting.read_rate / 1e9:.1f} GB/s, "
            f"so decoding cannot pass {setting.ceiling:.1f} tokens/s (more if the model fits the CPU's caches)"
        )


def memory_rate(threads: int) -> float:
    from hotset.bench.ceiling import BUFFER_BYTES, buffer, read_rate

    return read_rate(buffer(BUFFER_BYTES), threads)


def bench_tokens(engine: Engine, text: str | None) -> Tokens:
    """Ids of the text; random ones, said loudly, for a model without a tokenizer."""
    from importlib.resources import files

    import numpy as np

    from hotset.bench.runner import Tokens

    source = text if text is not None else files("hotset").joinpath("data/bench.txt").read_text("utf-8")
    try:
        return Tokens(engine.tokenize(source, add_special=False))
    except UnsupportedError:
        say(
            "WARNING: the model has no tokenizer, so random token ids are fed: speeds hold, hit rates do not carry over to text"
        )
        return Tokens(np.random.default_rng(0).integers(0, engine.config.n_vocab, 1 << 16).tolist())


def first_line(result: Result) -> str:
    """How an empty expert cache did, and whether the runs agree."""
    order = "each on an empty expert cache" if result.cold else "the expert cache kept from run to run"
    noise = f"; NOISY: they spread over {100 * result.spread:.0f} % of the median" if result.is_noisy else ""
    return f"{result.test.name}: first run on an empty expert cache {result.first.rate:.2f} t/s; {len(result.samples)} runs, {order}{noise}"
