"""`hotset plan`: what goes where, how fast, and which card would do, before anything is loaded or downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotset.bench.units import number_text, percent_text, size_text
from hotset.cli import options
from hotset.cli.output import held_warnings, printable, put, put_json, say
from hotset.errors import InputError

if TYPE_CHECKING:
    from hotset.experts.policy import Policy
    from hotset.plan.forecast import Rates
    from hotset.plan.hardware import Machine
    from hotset.plan.planner import HitRates, Plan, PlannedModel, Point

Rows = list[tuple[str, str]]
POINT_HEAD = ("slots per layer", f"{'VRAM in all':>11}  {'hit rate':>8}  {'ms/token':>8}  {'tokens/s':>8}")
# Points of the curve that are shown, from the smallest cache to the largest.
SHOWN_POINTS = 8


def plan(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help='A .gguf file, user/repo[:quant] of Hugging Face, a URL of a .gguf file, or "demo".', show_default=False),
    ] = None,
    model_option: options.ModelOption = None,
    hf_repo: options.HubOption = None,
    vram: Annotated[
        str | None, typer.Option("--vram", metavar="SIZE", help="VRAM that may be used, as in 8GiB.", show_default="what is free, where a GPU is found")
    ] = None,
    ram: Annotated[str | None, typer.Option("--ram", metavar="SIZE", help="Host memory, as in 32GiB.", show_default="this machine's")] = None,
    ctx_size: options.ContextOption = None,
    expert_cache: options.CacheOption = "auto",
    bus: Annotated[str, typer.Option("--bus", metavar="measured|GB/s", help="How fast copies to the GPU are: as `hotset doctor` measured, or GB/s.")] = "measured",
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="Replay this trace for the hit rate.", show_default="a curve fitted to recorded routing")
    ] = None,
    policy: options.PolicyOption = "lrfu:16",
    cache_type_k: options.CacheTypeKOption = "f16",
    cache_type_v: options.CacheTypeVOption = "f16",
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Say what goes where, how many experts fit, the hit rate and speed to expect, and the smallest card and memory that would do.

    Reads the model's header alone; of a file on the Hugging Face hub or behind a URL no more than that is downloaded.
    """
    del verbose  # read where bugs are reported
    from hotset.experts.policy import Policy
    from hotset.experts.slots import CacheSize, parse_bytes
    from hotset.model.kv import KVTypes
    from hotset.plan.forecast import Rates
    from hotset.plan.hardware import known_machine, ram_bytes
    from hotset.plan.opening import open_header
    from hotset.plan.planner import PlannedModel, plan_cpu, plan_gpu, with_bus

    name = options.chosen_model(model, model_option, hf_repo)
    size, asked, types = CacheSize.parse(expert_cache), Policy.parse(policy), KVTypes.parse(cache_type_k, cache_type_v)
    budget = parse_bytes(vram, "--vram") if vram else free_vram()
    host = parse_bytes(ram, "--ram") if ram else ram_bytes()
    machine = known_machine()
    rates = with_bus(Rates.of(machine), bus)
    with held_warnings():
        header = open_header(name)
        planned = PlannedModel.of(header.file, types)
    if header.fetched:
        say(f"read {size_text(header.fetched)} of {size_text(header.file.file_bytes)}; nothing else was downloaded")
    if machine is None:
        say(
            "note: this machine was not measured yet: run `hotset doctor` once, and forecasts are made of its own figures"
        )
    hit_rates = trace_hits(trace, str(asked), planned) if trace else curve_hits(asked, planned)
    if budget is None:
        say(
            "note: no GPU was found, so this is a plan for the CPU; give --vram, as in --vram 12GiB, to plan for a card"
        )
        result = plan_cpu(planned, machine, ram=host, n_ctx=ctx_size)
    else:
        result = plan_gpu(planned, rates, budget, ram=host, n_ctx=ctx_size, size=size, hit_rates=hit_rates)
    if json:
        put_json(facts(name, result, rates, machine))
    else:
        show(result, rates, machine)


def free_vram() -> int | None:
    """Free bytes of the first GPU, None where there is none."""
    from hotset.engine.cuda import free_before_context

    return next(iter(free_before_context().values()), None)


def trace_hits(path: str, policy: str, model: PlannedModel) -> HitRates:
    """Hit rates replayed from a trace of this model."""
    from hotset.experts.trace import Trace
    from hotset.plan.hit_rate import TraceHits

    config = model.config
    if not model.spans:
        raise InputError(f"--trace {path}: {config.name} is a dense model and has no experts to trace")
    hits = TraceHits(Trace.read(Path(path).expanduser()), policy, Path(path).name)
    hits.check(len(model.spans), config.n_experts, config.n_picks)
    return hits.at


def curve_hits(policy: Policy, model: PlannedModel) -> HitRates:
    """Hit rates of a policy without a trace."""
    from hotset.plan.hit_rate import policy_hit_rate

    config = model.config
    return lambda slots: policy_hit_rate(policy, slots, config.n_experts, config.n_picks)


def show(result: Plan, rates: Rates, machine: Machine | None) -> None:
    """The plan as text on stdout."""
    table(model_rows(result))
    table(
        [
            (f"{r.name} ({r.where})", f"{size_text(r.n_bytes)}: {r.note}" if r.note else size_text(r.n_bytes))
            for r in result.memory.rows
        ]
    )
    table(speed_rows(result, rates, machine))
    if result.points:
        table([POINT_HEAD, *(point_row(p, result) for p in shown_points(result))])
    table(advice_rows(result))
    for note in result.notes:
        put(f"note: {printable(note)}\n")
    if result.memory.budget is not None:
        put(
            "context, scratch and the reserve are estimates; `hotset run` measures them and deals slots from what is left\n"
        )


def table(rows: Rows) -> None:
    if rows:
        width = max(len(name) for name, _ in rows)
        put("".join(f"{printable(name):{width}}  {printable(value)}\n" for name, value in rows) + "\n")


def model_rows(result: Plan) -> Rows:
    c, reads = result.model.config, result.model.reads
    experts = (
        f"{c.n_experts} in each of {len(result.model.spans)} layers, {c.n_picks} picked"
        if result.model.spans
        else "none: a dense model"
    )
    return [
        ("model", f"{c.name} ({c.architecture}, {c.n_layers} layers)"),
        ("experts", experts),
        (
            "read per token",
            f"{size_text(reads.per_token)}: {size_text(reads.dense_read)} always, {size_text(reads.spans_read)} of experts",
        ),
        ("context", f"{result.n_ctx:,} tokens"),
    ]


def speed_rows(result: Plan, rates: Rates, machine: Machine | None) -> Rows:
    rows: Rows = []
    budget = result.memory.budget
    if budget is not None:
        rows.append(("VRAM", f"{size_text(result.memory.total('gpu'))} of {size_text(budget)} allowed"))
        rows.append(("rates", rates.source))
        rows.append(("", f"GPU memory {rates.memory / 1e9:,.0f} GB/s, {bus_text(result, rates)}"))
    elif machine:
        threads = number_text(machine.cores, "thread")
        rows.append(("rates", f"host memory {machine.dram_rate(machine.cores) / 1e9:.1f} GB/s with {threads}"))
    if h := result.hit_rate:
        if h.low == 1:
            rows.append(("hit rate", "100 %: every expert has a slot"))
        else:
            rows.append(
                ("hit rate", f"{percent_text(h.expected)}, from {percent_text(h.low)} to {percent_text(h.high)}")
            )
            rows.append(("", h.source))
    if s := result.speed:
        rows.append(
            ("decode", f"{s.expected:.1f} tokens/s, from {s.low:.1f} to {s.high:.1f} (one sequence, short context)")
        )
    else:
        rows.append(("decode", "no forecast: memory was not measured"))
    if budget is not None:
        by_hits = "the hit rate's, and " if h and h.low < 1 else ""
        rows.append(("", f"the band is {by_hits}{100 * rates.tolerance:.0f} % either way for the step itself"))
        if h and h.low < 1:
            rows.append(
                ("", "experts that come before they are picked are not counted in: steps are shorter by what they save")
            )
    return rows


def bus_text(result: Plan, rates: Rates) -> str:
    spans = result.model.span_bytes
    if not spans:
        return f"copies {rates.copy_rate(1 << 20) / 1e9:.1f} GB/s"
    rate = sum(spans) / sum(s / rates.copy_rate(s) for s in spans)
    return f"copies of an expert {rate / 1e9:.1f} GB/s"


def shown_points(result: Plan) -> list[Point]:
    step = max(1, len(result.points) // SHOWN_POINTS)
    return [p for i, p in enumerate(result.points) if i % step == 0 or p is result.knee or p is result.points[-1]]


def point_row(p: Point, result: Plan) -> tuple[str, str]:
    knee = "  <- the knee" if p is result.knee else ""
    over = "  more than allowed" if p.vram_bytes > (result.memory.budget or 0) else ""
    return (
        f"{p.n_slots[0]} ({percent_text(p.fraction)})",
        f"{size_text(p.vram_bytes):>11}  {percent_text(p.hit_rate):>8}  {p.ms:8.2f}  {1e3 / p.ms:8.1f}{knee}{over}",
    )


def advice_rows(result: Plan) -> Rows:
    def gib(n: int | None) -> str:
        return "none of the usual sizes" if n is None else f"{n} GiB"

    rows = [("smallest card", f"{gib(result.card_gib)} to run at all")]
    if result.knee:
        knee = f"for the knee ({result.knee.n_slots[0]} slots per layer)"
        rows.append(("a good card", f"{gib(result.good_card_gib)} {knee}"))
    return [*rows, ("smallest host memory", gib(result.ram_gib))]


def facts(name: str, result: Plan, rates: Rates, machine: Machine | None) -> dict[str, Any]:
    """The whole as plain values, as `--json` prints it."""
    c, memory = result.model.config, result.memory

    def point(p: Point) -> dict[str, Any]:
        return {
            "slots": p.n_slots[0], "fraction": p.fraction, "vram_bytes": p.vram_bytes, "hit_rate": p.hit_rate,
            "ms_per_token": p.ms, "tokens_per_s": 1e3 / p.ms,
        }  # fmt: skip

    return {
        "model": name,
        "name": c.name,
        "architecture": c.architecture,
        "device": "cpu" if memory.budget is None else "cuda",
        "n_ctx": result.n_ctx,
        "vram_bytes": memory.budget,
        "memory": [{"name": r.name, "where": r.where, "bytes": r.n_bytes, "note": r.note} for r in memory.rows],
        "n_slots": list(memory.n_slots),
        "n_experts": c.n_experts,
        "measured": machine is not None,
        "rates": None if memory.budget is None else {"source": rates.source, "gpu_memory": rates.memory, "copies": {str(n): r for n, r in rates.copies.items()}},
        "hit_rate": None if result.hit_rate is None else vars(result.hit_rate),
        "tokens_per_s": None if result.speed is None else vars(result.speed),
        "points": [point(p) for p in result.points],
        "knee": None if result.knee is None else point(result.knee),
        "smallest_card_gib": result.card_gib,
        "good_card_gib": result.good_card_gib,
        "smallest_ram_gib": result.ram_gib,
        "notes": list(result.notes),
    }  # fmt: skip
