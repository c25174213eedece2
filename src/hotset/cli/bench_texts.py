"""What `hotset bench` says in words: what machine and model allow, how runs went, what was forecast, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hotset.bench.units import number_text, size_text
from hotset.cli.output import say

if TYPE_CHECKING:
    from hotset.bench.arms import Placed
    from hotset.bench.report import Line, Setting
    from hotset.bench.runner import Result


def cache_text(arm: Placed, n_experts: int) -> str:
    """As in "25%: 8 of 32 experts per layer"."""
    from hotset.engine.memory import slots_note
    from hotset.experts.slots import CacheSize

    is_off = CacheSize.parse(arm.arm.size).kind == "off"
    return "off" if is_off else f"{arm.arm.size}: {slots_note(arm.n_slots, n_experts)}"


def policy_text(arm: Placed, *, counted: bool) -> str:
    """The policy, "-" for a cache that is off."""
    if not sum(arm.n_slots):
        return "-"
    return f"{arm.arm.policy} (counted)" if counted else str(arm.arm.policy)


def varies(settings: Sequence[Setting]) -> dict[str, bool]:
    """Which of the settings that are swept differ: the columns of a table that tell them apart."""
    return {
        "threads": len({s.threads for s in settings}) > 1,
        "cache": len({(s.cache, s.policy) for s in settings}) > 1,
    }


def names(settings: Sequence[Setting]) -> list[str]:
    """What stands behind a test's name to tell settings apart, as in ", 25%: 8 of 32 experts per layer, lru, 2 threads"."""
    shown = varies(settings)

    def name(s: Setting) -> str:
        parts = [s.cache, "" if s.policy == "-" else s.policy] if shown["cache"] else []
        parts += [number_text(s.threads, "thread")] if shown["threads"] else []
        return "".join(f", {part}" for part in parts if part)

    return [name(s) for s in settings]


def show_card(setting: Setting) -> None:
    """What the machine and the model allow, before anything is measured."""
    say(
        f"a token reads {size_text(setting.per_token)} of weights (dense ones and picked experts; keys and values come on top)"
    )
    if setting.bus_rate and setting.read_rate:
        say(
            f"measured now: GPU memory {setting.read_rate / 1e9:,.0f} GB/s (read and written), "
            f"pinned copies of an expert {setting.bus_rate / 1e9:.1f} GB/s"
        )
    elif setting.read_rate and setting.ceiling:
        say(
            f"plain read of memory with {number_text(setting.threads, 'thread')}, measured now: {setting.read_rate / 1e9:.1f} GB/s, "
            f"so decoding cannot pass {setting.ceiling:.1f} tokens/s (more if the model fits the CPU's caches)"
        )


def first_line(result: Result, named: str = "") -> str:
    """How an empty expert cache did, how the runs after it did, and whether they agree."""
    order = "each on an empty expert cache" if result.cold else "the expert cache kept from run to run"
    noise = f"; NOISY: they spread over {100 * result.spread:.0f} % of the median" if result.is_noisy else ""
    return (
        f"{result.test.name}{named}: first run on an empty expert cache {result.first.rate:.2f} t/s; "
        f"{number_text(len(result.samples), 'run')} {result.mean:.2f} ± {result.deviation:.2f} t/s, {order}{noise}"
    )


def last_lines(lines: Sequence[Line]) -> Iterator[str]:
    """Forecasts beside what was measured, and verdicts."""
    for line, name in zip(lines, names([line.setting for line in lines]), strict=True):
        if line.forecast is not None and line.forecast_error is not None:
            yield f"forecast of {line.result.test.name}{name}: {forecast_text(line, line.forecast, line.forecast_error)}"
        if line.verdict:
            yield f"verdict on {line.result.test.name}{name}: {line.verdict}"


def forecast_text(line: Line, forecast: float, error: float) -> str:
    """As in "95.0 t/s at this hit rate, +3.2 % off what was measured"."""
    how = "at this hit rate" if line.setting.backend == "CUDA" else "from the rate at which memory is read"
    return f"{forecast:.1f} t/s {how}, {100 * error:+.1f} % off what was measured"
