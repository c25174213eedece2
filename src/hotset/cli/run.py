"""`hotset run`: continue a text, or chat."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli import options
from hotset.cli.answer import Interrupt, answer_facts, rates, stream_answer
from hotset.cli.cache_report import show_report
from hotset.cli.chat import chat
from hotset.cli.opening import Choices, engine_facts, open_engine
from hotset.cli.output import put, put_json, say
from hotset.config import SamplingParams
from hotset.errors import InputError

if TYPE_CHECKING:
    from hotset.engine.engine import Engine, Generation

Turns = list[tuple[str, "Generation"]]
DEFAULTS = SamplingParams()
DEMO_NOTE = (
    "note: demo is a small base model: it continues text in the style of documentation and code, and knows nothing"
)


def run(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    prompt: Annotated[
        str | None,
        typer.Option("-p", "--prompt", metavar="TEXT", help="Continue this text, as it is: no chat template.", show_default="chat"),
    ] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Continue the text of a file.", show_default=False)
    ] = None,
    predict: Annotated[
        int | None,
        typer.Option("-n", "--predict", metavar="N", help="Tokens to generate at most; -1: until the end or a full context.", show_default="-1"),
    ] = None,
    temp: Annotated[float, typer.Option(metavar="X", help="Temperature; 0 takes the most probable token.")] = DEFAULTS.temperature,
    top_k: Annotated[int, typer.Option(metavar="N", help="Draw among the so many most probable tokens; 0: among all.")] = DEFAULTS.top_k,
    top_p: Annotated[float, typer.Option(metavar="X", help="Draw among tokens that make up this probability; 1: among all.")] = DEFAULTS.top_p,
    min_p: Annotated[float, typer.Option(metavar="X", help="Leave out tokens under this share of the first's probability; 0: none.")] = DEFAULTS.min_p,
    repeat_penalty: Annotated[float, typer.Option(metavar="X", help="Penalty on repeated tokens; 1: none.")] = DEFAULTS.repeat_penalty,
    repeat_last_n: Annotated[int, typer.Option(metavar="N", help="How many last tokens the penalty looks at.")] = DEFAULTS.repeat_last_n,
    seed: Annotated[
        int | None, typer.Option("-s", "--seed", metavar="N", help="The same seed gives the same text.", show_default="a new one")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop before this text; may be given several times.", show_default=False)
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask a running server (hotset serve) instead of loading a model; its key comes from HOTSET_API_KEY.", show_default=False),
    ] = None,
    ctx_size: options.ContextOption = None,
    threads: options.ThreadsOption = None,
    device: options.DeviceOption = "auto",
    expert_cache: options.CacheOption = "auto",
    vram: options.VramOption = None,
    policy: options.PolicyOption = "lrfu:16",
    pre: options.PreOption = None,
    ubatch_size: options.UbatchOption = None,
    cache_type_k: options.CacheTypeKOption = "f16",
    cache_type_v: options.CacheTypeVOption = "f16",
    no_graph: options.NoGraphOption = False,
    no_prefetch: options.NoPrefetchOption = False,
    page_lock: options.PageLockOption = None,
    no_warm_start: options.NoWarmStartOption = False,
    slots_from_profile: options.DealOption = False,
    layers: Annotated[bool, typer.Option("--layers", help="Report the expert cache layer by layer.")] = False,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Continue a text (-p or -f), or chat in the terminal; lines from a pipe are turns of a chat.

    The generated text goes to stdout; all else goes to stderr, the prompt too (shown only in a terminal). With --json stdout is left to
    the JSON value.
    """
    text = given_text(prompt, file)
    sampling = SamplingParams(
        temperature=temp, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty, repeat_last_n=repeat_last_n,
        seed=seed, max_tokens=None if predict == -1 else predict, stop=tuple(stop or ()),
    )  # fmt: skip
    write = put if not json else to_stderr
    if server is not None:
        if model or model_option or hf_repo:
            raise InputError("--server was given and a model too; the server has its own, so leave MODEL out")
        ask_server(server, text, sampling, write, json=json)
        return
    choices = Choices(
        options.chosen_model(model, model_option, hf_repo), device=device, expert_cache=expert_cache, policy=policy, vram=vram, n_ctx=ctx_size,
        threads=threads, pre=pre, n_ubatch=ubatch_size, graph=not no_graph, prefetch=not no_prefetch, page_lock=page_lock,
        cache_type_k=cache_type_k, cache_type_v=cache_type_v, warm_start=not no_warm_start, slots_from_profile=slots_from_profile,
    )  # fmt: skip
    engine = open_engine(choices)
    say(sampling_line(sampling))
    if choices.model == "demo":
        say(DEMO_NOTE)
    turns: Turns = []
    interrupted = converse(engine, text, sampling, turns, write)
    report(engine, turns, layers=layers, verbose=verbose)
    if json:
        facts = [{"prompt": asked, **answer_facts(answer)} for asked, answer in turns]
        answers = facts[0] if text is not None else {"turns": facts}
        put_json({**engine_facts(engine, choices), **answers, "stats": engine.stats().as_dict()})
    if interrupted:
        raise KeyboardInterrupt


def ask_server(
    url: str, text: str | None, sampling: SamplingParams, write: Callable[[str], None], *, json: bool
) -> None:
    """The same with a server."""
    from hotset.cli import remote

    say(sampling_line(sampling))
    answers, interrupted = remote.run_remote(url, text, sampling, write)
    remote.report(answers)
    if json:
        put_json({"server": url, **(answers[0] if text is not None else {"turns": answers})})
    if interrupted:
        raise KeyboardInterrupt


def report(engine: Engine, turns: Turns, *, layers: bool, verbose: bool) -> None:
    """Speed and the expert cache's doings over all turns; `verbose` adds a line for each."""
    prompt_rate, decode_rate = rates(answer for _, answer in turns)
    show_report(engine.stats(), prompt_rate=prompt_rate, decode_rate=decode_rate, layers=layers)
    for _, a in turns if verbose else ():
        reused = f"{a.reused_tokens} of {a.prompt_tokens} prompt tokens reused"
        say(f"seed {a.seed}, ended by {a.finish_reason}, {len(a.tokens)} tokens, {reused}")


def converse(
    engine: Engine, text: str | None, sampling: SamplingParams, turns: Turns, write: Callable[[str], None]
) -> bool:
    """One answer to `text`, or a chat without it; returns whether Ctrl-C cut the one answer short."""
    settings = vars(sampling)
    if text is None:
        chat(engine, settings, write, turns)
        return False
    stream = engine.stream(text, **settings)
    if sys.stdout.isatty() and sys.stderr.isatty():
        to_stderr(text)
    with Interrupt() as interrupt:
        turns.append((text, stream_answer(stream, write, interrupt)))
    return interrupt.asked


def to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def given_text(prompt: str | None, file: str | None) -> str | None:
    """The text to continue, None for a chat."""
    if prompt is not None and file is not None:
        raise InputError("-p and -f were both given; give the text one way")
    return options.read_text(file, "-f") if file is not None else prompt


def sampling_line(p: SamplingParams) -> str:
    """How tokens are drawn, with llama.cpp's defaults."""
    limit = "until it ends" if p.max_tokens is None else f"at most {p.max_tokens:,} tokens"
    if p.is_greedy:
        return f"sampling: greedy, {limit}"
    cuts = f"top-k {p.top_k}, top-p {p.top_p:g}, min-p {p.min_p:g}, repeat penalty {p.repeat_penalty:g} over {p.repeat_last_n}"
    seed = "a new seed" if p.seed is None else f"seed {p.seed}"
    return f"sampling: temperature {p.temperature:g}, {cuts}, {seed}, {limit} (defaults are llama.cpp's)"
