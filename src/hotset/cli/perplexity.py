"""`hotset perplexity`: how well a model predicts a text, counted as llama.cpp counts."""

from __future__ import annotations

from typing import Annotated

import typer

from hotset.cli import options
from hotset.cli.opening import Choices, engine_facts, open_engine
from hotset.cli.output import put, put_json, say


def perplexity(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    file: Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="The text.", show_default=False)] = "",
    ctx_size: Annotated[int, typer.Option("-c", "--ctx-size", metavar="N", help="Tokens of a window.")] = 512,
    chunks: Annotated[int, typer.Option("--chunks", metavar="N", help="Windows to score; -1: all.")] = 40,
    mode: Annotated[
        str, typer.Option("--mode", metavar="fast|reference", help="fast: int8 activations; reference: all float32.")
    ] = "fast",
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
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:
    """Score the second half of each window of a text: the perplexity on stdout, the running value on stderr.

    The text is tokenised as a whole, without a begin token and with control tokens as plain text.
    """
    del verbose  # read where bugs are reported
    from hotset.bench.perplexity import Scoring, score
    from hotset.errors import InputError

    if not file:
        raise InputError("no text was given; name a file with -f")
    scoring = Scoring(ctx_size, None if chunks == -1 else chunks, mode)
    choices = Choices(
        options.chosen_model(model, model_option, hf_repo), device=device, expert_cache=expert_cache, policy=policy, vram=vram, n_ctx=ctx_size,
        threads=threads, pre=pre, n_ubatch=ubatch_size, graph=not no_graph, prefetch=not no_prefetch, cache_type_k=cache_type_k, cache_type_v=cache_type_v, page_lock=page_lock, why_n_ctx="one window",
    )  # fmt: skip
    text = options.read_text(file, "-f")
    engine = open_engine(choices)
    result = None
    for result in score(engine, text, scoring):
        say(f"[{result.chunks}/{result.of_chunks}] {result.perplexity:.4f}")
    assert result is not None  # score() yields for every window, and raises where there is none
    put(f"perplexity {result.perplexity:.4f} +- {result.uncertainty:.4f} over {result.tokens:,} tokens\n")
    if json:
        put_json({**engine_facts(engine, choices), **result.as_dict()})
