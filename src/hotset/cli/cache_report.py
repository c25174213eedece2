"""The cache report: what the expert cache did, in a few lines, per layer on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.bench.units import percent_text, size_text
from hotset.cli.output import say, show_table

if TYPE_CHECKING:
    from hotset.engine.stats import Stats


def show_report(stats: Stats, *, prompt_rate: float, decode_rate: float, layers: bool) -> None:
    """Say what the cache did and how fast it went; `layers` adds a table with a line for each layer."""
    for line in report_lines(stats, prompt_rate, decode_rate):
        say(line)
    if layers:
        headers = ("layer", "slots", "hits", "misses", "overflow", "hit rate", "fetched")
        show_table("decode, per layer", headers, layer_rows(stats), right=range(len(headers)))


def report_lines(stats: Stats, prompt_rate: float, decode_rate: float) -> list[str]:
    prompt = f"prompt: {stats.prompt.tokens:,} tokens, {prompt_rate:.1f} tokens/s"
    lines = [f"{prompt}; decode: {stats.tokens:,} tokens, {decode_rate:.1f} tokens/s"]
    name = f"expert cache ({stats.policy}{'' if stats.active else ', only counted'})"
    if not stats.tokens:
        return [*lines, f"{name}: nothing was decoded"]
    fetched = "fetched" if stats.active else "would have been fetched"
    lines.append(
        f"{name}: hit rate {percent_text(stats.hit_rate)}, {stats.hits:,} hits, {stats.misses:,} misses, "
        f"{stats.overflows:,} of them in overflow; {size_text(stats.bytes_fetched / stats.tokens)} per token {fetched}"
    )
    if stats.fetch_ms is not None:
        lines.append(f"time in misses: {stats.fetch_ms:.1f} ms, {stats.fetch_ms / stats.tokens:.3f} ms per token")
    if ahead := stats.prefetched:
        needed, in_vain = (size_text(n / stats.tokens) for n in (ahead.needed, ahead.in_vain))
        lines.append(f"brought before it was picked, per token: {needed} that was needed, {in_vain} in vain")
    if stats.unused_steps:
        lines.append(f"{stats.unused_steps} more steps had begun when a stop string was met; they are counted too")
    return lines


def layer_rows(stats: Stats) -> list[tuple[str, ...]]:
    return [
        (
            str(i),
            f"{x.n_slots}/{x.n_experts}",
            f"{x.hits:,}",
            f"{x.misses:,}",
            f"{x.overflows:,}",
            percent_text(x.hit_rate),
            size_text(x.bytes_fetched),
        )
        for i, x in enumerate(stats.layers)
    ]
