"""`hotset simulate`: replay recorded picks through cache policies, pools and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hotset.bench.units import number_text, percent_text, size_text
from hotset.cli import options
from hotset.cli.output import put, put_json, say
from hotset.errors import HotsetError, InputError

if TYPE_CHECKING:
    from hotset.experts.trace import Trace
    from hotset.experts.trace_file import Phase
    from hotset.lab.policies import LabPolicy
    from hotset.lab.study import Outcome

STEP = Fraction(5, 100)
MAX_SIZES = 256
POLICY_HELP = (
    "Policies, or all: lru, lfu, lrfu:HALF_LIFE, fifo, clock, sieve, s3-fifo, slru, lru-2, arc, w-tinylfu, gdsf, product, static (ranked by "
    "use), belady (the best that can be done), unbounded; on demand placement and optimum, which leave misses out of the cache."
)


def simulate(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace file of `hotset trace`, a .npz file or CSV.", show_default=False)],
    slots: Annotated[
        str,
        typer.Option("--slots", metavar="SIZE,...", help="Parts of each layer's experts: 25%, 16slots, or a range as in 5%..100% (by 5 %) or 10%..50%:10%."),
    ] = "25%,50%",
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME,...", help=POLICY_HELP)
    ] = "lru,lrfu:16,belady",
    pool: Annotated[
        str,
        typer.Option("--pool", metavar="NAME,...", help="layer: the same slots for every layer; global: one pool; marginal: per layer where a slot gains most; all."),
    ] = "layer",
    phase: Annotated[
        str | None,
        typer.Option("--phase", metavar="prompt|decode", help="Whose picks of a trace file to replay.", show_default="decode, or prompt where nothing was decoded"),
    ] = None,
    first: Annotated[int | None, typer.Option("--first", metavar="N", help="Replay the first N tokens only.", show_default="all")] = None,
    experts: Annotated[
        int | None, typer.Option("--experts", metavar="N", help="Experts of a layer, which CSV does not say.", show_default="up to the highest number in it")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Replay a trace file on the cache it was recorded with, and compare with the counters in it.")] = False,
    plots: Annotated[
        str | None, typer.Option("--plots", metavar="FOLDER", help="Write plots as PNG (needs hotset[plots]).", show_default=False)
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write one HTML page with tables and plots (needs hotset[plots]).", show_default=False)
    ] = None,
    threads: options.ThreadsOption = None,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Say what cache policies and sizes would have hit, from a cold start; one token of one layer is one request, decided as a whole.

    Intervals are 95 %, over answers. With --json stdout has one list with an object for every policy, pool and size.
    """
    del verbose  # read where bugs are reported
    from hotset.host.threads import checked_threads
    from hotset.lab.policies import parse_policies
    from hotset.lab.pools import parse_pools
    from hotset.lab.study import Study

    path = Path(trace).expanduser()
    if check:
        check_run(path, json=json)
        return
    asked = parse_policies(policy), parse_pools(pool)
    picks = read_picks(path, phase, experts, first)
    sizes = fractions(slots, picks.n_experts)
    folder, page = (None if given is None else Path(given).expanduser() for given in (plots, report))
    if folder or page:
        from hotset.lab.report import check_outputs

        check_outputs(folder, page)
    say(trace_line(picks))
    say(f"replaying {count_of(asked[0])} in {number_text(len(asked[1]), 'pool')} at {number_text(len(sizes), 'size')}")
    study = Study(picks, checked_threads(threads))
    outcomes = list(study.outcomes(*asked, sizes))
    for line in cliff_lines(picks):
        say(line)
    if folder or page:
        from hotset.lab.report import write_plots, write_report

        if folder:
            write_plots(study, outcomes, folder)
        if page:
            write_report(study, outcomes, page, title=path.name)
        say(f"written: {', '.join(str(place) for place in (folder, page) if place)}")
    if json:
        put_json([outcome.as_dict() for outcome in outcomes])
    else:
        put(table(outcomes))


def read_picks(path: Path, phase: str | None, experts: int | None, first: int | None) -> Trace:
    """The trace, of a phase where it knows them; the first tokens of it alone."""
    from hotset.experts.trace import Trace

    if phase not in (None, "prompt", "decode"):
        raise InputError(f"--phase {phase!r} is not one of prompt, decode")
    if first is not None and first < 1:
        raise InputError(f"--first {first}: give at least 1 token")
    trace = Trace.read(path, cast("Phase | None", phase), experts)
    return trace if first is None else trace.first(first)


def count_of(policies: Sequence[LabPolicy]) -> str:
    return "1 policy" if len(policies) == 1 else f"{len(policies)} policies"


def fractions(text: str, n_experts: int) -> list[Fraction]:
    """Read sizes as in "25%", "16slots", "5%..100%", "10%..50%:10%" or, as for bench, "10%-50%+10%", as parts of a layer's experts, ascending."""
    found: set[Fraction] = set()
    for word in text.split(","):
        start, dots, rest = word.partition("..")
        if not dots:
            found |= {fraction(one, n_experts) for one in options.range_of(word.strip(), "--slots")}
            continue
        end, colon, step_text = rest.partition(":")
        low, high = fraction(start, n_experts), fraction(end, n_experts)
        step = fraction(step_text, n_experts) if colon else STEP
        if step <= 0 or low > high:
            raise InputError(f"--slots {word!r} is no range; write it upwards, as in 5%..100% or 10%..50%:10%")
        if high - low > MAX_SIZES * step:
            raise InputError(f"--slots {word!r} has more than {MAX_SIZES} sizes; take a larger step")
        found |= {low + i * step for i in range(int((high - low) / step) + 1)}
    return sorted(found)


def fraction(text: str, n_experts: int) -> Fraction:
    from hotset.experts.slots import CacheSize

    try:
        size = CacheSize.parse(text)
    except InputError:
        size = CacheSize("off")
    if size.kind == "percent":
        return size.amount / 100
    if size.kind == "slots" and size.amount <= n_experts:
        return size.amount / n_experts
    raise InputError(
        f"--slots {text!r}: give percent of a layer's {n_experts} experts, as in 25%, or 1slots to {n_experts}slots"
    )


def trace_line(trace: Trace) -> str:
    """What the trace holds."""
    shape = f"{trace.n_layers} layers, {trace.n_experts} experts, {trace.k} picked"
    kind = {"decode": "decoded token", "prompt": "prompt token", None: "token"}[trace.phase]
    return f"{number_text(trace.n_tokens, kind)} of {number_text(len(trace.offsets) - 1, 'answer')}; {shape}"


def cliff_lines(trace: Trace) -> list[str]:
    """Where one token needs more than there are slots."""
    share = trace.k / trace.n_experts
    lines = [
        f"the cliff: a token needs {trace.k} of a layer's {trace.n_experts} experts; under {100 * share:.1f} % of slots it never finds all"
    ]
    if len(trace.offsets) < 3:
        lines.append("intervals need at least two answers, and the trace has one")
    if not trace.span_bytes:
        lines.append("the trace does not say how many bytes an expert has, so bytes are not counted")
    return lines


def table(outcomes: Sequence[Outcome]) -> str:
    """Results as a table in Markdown."""
    from hotset.bench.markdown import markdown_table

    shown = [(name, cell) for name, cell, is_shown in COLUMNS if is_shown(outcomes)]
    return markdown_table([name for name, _ in shown], [[cell(o) for _, cell in shown] for o in outcomes])


def interval_text(between: tuple[float, float] | None) -> str:
    return "-" if between is None else "{:.1f} to {:.1f} %".format(*(100 * x for x in between))


def always(_: Sequence[Outcome]) -> bool:
    return True


# Columns of the table: what they are called, what they hold, and whether they say anything of some outcomes.
COLUMNS: tuple[tuple[str, Callable[[Outcome], str], Callable[[Sequence[Outcome]], bool]], ...] = (
    ("policy", lambda o: str(o.policy), always),
    ("pool", lambda o: o.pool, always),
    ("slots", lambda o: percent_text(o.slots), always),
    ("hit rate", lambda o: percent_text(o.hit_rate), always),
    ("95 %", lambda o: interval_text(o.hit_rate_95), lambda found: any(o.hit_rate_95 for o in found)),
    ("byte hits", lambda o: percent_text(o.byte_hit_rate), lambda found: any(o.span_bytes for o in found)),
    ("fetched/token", lambda o: size_text(o.bytes_per_token or 0), lambda found: any(o.span_bytes for o in found)),
    ("below belady", lambda o: percent_text(o.regret), always),
    ("note", lambda o: "below one token's demand" if o.below_demand else "", lambda found: any(o.below_demand for o in found)),
)  # fmt: skip


def check_run(path: Path, *, json: bool) -> None:
    """Say whether the replay of a recorded run counts what the engine counted; raises HotsetError where it does not."""
    from hotset.experts.simulate import replay_run
    from hotset.experts.trace_file import PHASES
    from hotset.experts.trace_reader import read_run

    run = read_run(path)
    if not run.complete:
        say(
            f"the run was cut off after {run.n_steps} steps; the last counters were written after step {run.counted_steps}"
        )
    if run.counts is None:
        raise InputError(
            f"{path} holds no counters: the run ended before its first answer; record it again with `hotset trace`"
        )
    replayed = replay_run(run)
    result: dict[str, Any] = {"steps": run.counted_steps, "equal": replayed == run.counts}
    for phase in PHASES:
        for name in ("hits", "misses", "overflows", "bytes_fetched"):
            live, again = getattr(run.counts[phase], name), getattr(replayed[phase], name)
            total = live if isinstance(live, int) else sum(live)
            say(
                f"{phase} {name}: engine {total:,}, {'the same' if live == again else 'simulated otherwise: ' + str(again)}"
            )
            result[f"{phase}_{name}"] = total
    if json:
        put_json(result)
    if replayed != run.counts:
        raise HotsetError(f"{path}: the simulator does not count what the engine counted (policy {run.header.policy})")
    put(
        f"simulated = live: {run.counted_steps:,} steps, equal in hits, misses, overflows and bytes of every layer\n"
        if not json
        else ""
    )
