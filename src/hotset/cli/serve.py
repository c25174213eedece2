"""`hotset serve`: the model behind the APIs that other programs speak."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli import options
from hotset.cli.opening import Choices, open_engine
from hotset.cli.output import say

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.engine.loading import Progress

MAX_PARALLEL = 8
# Whoever watches the experts a few times a second sees every step of a fast model.
RECORDED_STEPS = 128


def serve(
    model: options.ModelArgument = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 is reached from other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes any that is free.")] = 8080,
    parallel: Annotated[
        int, typer.Option("-np", "--parallel", metavar="N", min=1, max=MAX_PARALLEL, help="Requests that run at once; each has the whole context.")
    ] = 4,
    api_key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Keys that are accepted, one a line; or one in HOTSET_API_KEY.", show_default="none: all requests are answered"),
    ] = None,
    alias: Annotated[str | None, typer.Option("-a", "--alias", metavar="NAME", help="The model's name in answers.", show_default="the file's name")] = None,
    chat_template_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A chat template in place of the model's own.", show_default=False)
    ] = None,
    exact_reuse: Annotated[
        bool, typer.Option("--exact-reuse", help="Take over nothing of an earlier answer but its prompt: on a GPU the last bits then never depend on it.")
    ] = False,
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
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Serve the APIs of OpenAI and Anthropic, and a page, to this machine.

    GET /health answers 503 with the progress until the model is loaded. Ctrl-C or SIGTERM lets what runs come to its end.
    """
    from hotset.server.keys import read_keys
    from hotset.server.listening import WAITING_PER_LANE, Address
    from hotset.server.listening import serve as serve_until_signal
    from hotset.server.serving import Settings

    choices = Choices(
        options.chosen_model(model, model_option, hf_repo), device=device, expert_cache=expert_cache, policy=policy, vram=vram, n_ctx=ctx_size,
        threads=threads, pre=pre, n_ubatch=ubatch_size, graph=not no_graph, prefetch=not no_prefetch, page_lock=page_lock,
        cache_type_k=cache_type_k, cache_type_v=cache_type_v, n_parallel=parallel,
        record_steps=RECORDED_STEPS, warm_start=not no_warm_start, slots_from_profile=slots_from_profile,
    )  # fmt: skip
    address = Address(host, port)
    keys = read_keys(api_key_file)
    template = None if chat_template_file is None else options.read_text(chat_template_file, "--chat-template-file")
    if not address.is_local and not keys:
        say("warning: other machines can reach this server and no API key is set; see --api-key-file")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING, format="%(message)s")

    def open_model(progress: Progress) -> Engine:
        engine = open_engine(choices, progress)
        if template is not None:
            engine.use_template(template)
        say(f"ready: {parallel} requests at once, {engine.n_ctx:,} tokens each")
        return engine

    settings = Settings(alias or choices.name, parallel, WAITING_PER_LANE * parallel)
    serve_until_signal(
        open_model,
        address,
        keys,
        settings,
        reuse_drawn=not exact_reuse,
        on_start=lambda url: say(f"listening on {url}"),
    )
