"""What a measurement says in words: whether the expert cache helped, and if not, why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hotset.bench.units import percent_text, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotset.bench.report import Line

# Speeds differ where the gap is over this share, and over twice the standard error of the two means.
SAME = 0.02
# Hits beyond what random picks get, below which a cache holds nothing worth holding.
HARDLY_REPEAT = 0.05
# Below this share of a step in misses, faster fetches or more hits change little.
IDLE_BUS = 0.10
# From this share of a step, or of what the memory gives, on, that is what a run is bound by.
BOUND = 0.5
# Faster than its memory can be read a small model comes from the processor's caches.
IN_CACHE = 1.1
# A host that starts kernels one after the other keeps a core this busy.
BUSY_CORE = 0.9
# Threads of the CPU engine spin while they wait: below this share others took the cores.
FULL_SHARE = 0.75
OFF, STATIC = "the cache off", "static placement"


def verdicts(lines: Sequence[Line]) -> list[str]:
    """One sentence or more for each line, "" for prompts; of arms that others are held against, what bound them."""
    found = [verdict(line, [other for other in lines if is_alike(line, other)]) for line in lines]
    return [joined(text, bound(line)) for text, line in zip(found, lines, strict=True)]


def is_alike(a: Line, b: Line) -> bool:
    """Whether two lines differ in the expert cache alone."""
    return (a.result.test, a.setting.threads) == (b.result.test, b.setting.threads)


def verdict(line: Line, others: Sequence[Line]) -> str:
    """Judge one arm's decoding beside the other arms of the same test."""
    s = line.setting
    if line.result.test.kind != "tg" or is_off(line) or s.policy.startswith("static"):
        return ""
    if holds_all(line):
        return (
            "everything fits: every expert has a slot, so nothing is left for a smaller cache or another policy to gain"
        )
    why = reason(line)
    if not s.active:
        hits = percent_text(line.result.hit_rate)
        return joined(f"counted only, for the CPU computes experts where they lie: {hits} would have been hits", why)
    rivals = rivals_of(line, others)
    if not rivals:
        how = f"--expert-cache {s.cache.partition(':')[0]},off --policy {s.policy},static"
        return joined(f"not compared with the cache off or static placement; that does {how}", why)
    orders = {name: compare(line, other) for name, other in rivals.items()}
    told = ", ".join(told_as(line, other, name) for name, other in rivals.items())
    gains = sum(order == "faster" for order in orders.values())
    if gains == len(rivals):
        return f"the cache helped: {told}"
    text = f"the cache {'helped in part' if gains else 'did not help'}: {told}"
    if orders.get(OFF) == "slower":
        text = joined(text, "a speed that was worse than with the cache off")
    return joined(text, why or f"none of the known reasons holds: {misses_text(line)}")


def bound(line: Line) -> str:
    """What kept decoding from being faster: the bus, memory, launches, the CPU's cores; "" for prompts."""
    s, r = line.setting, line.result
    if r.test.kind != "tg":
        return ""
    read = s.per_token * r.mean / s.read_rate if s.read_rate else 0.0
    busy = r.busy_cores or 0.0
    misses = (r.fetch_ms or 0.0) * r.mean / 1e3
    if misses >= BOUND:
        return f"bound by the bus: misses take {percent_text(misses)} of the time"
    if BOUND <= read <= IN_CACHE:
        return f"bound by memory: weights are read at {percent_text(read)} of its rate"
    if read > IN_CACHE:
        return f"bound by the processor, whose own caches hold the weights: {busy:.1f} CPU cores busy"
    if s.backend == "CPU" and busy < FULL_SHARE * s.threads:
        return (
            f"bound by the CPU, of which it got little: {busy:.1f} of {s.threads} threads busy; do other programs run?"
        )
    if s.backend == "CPU":
        return f"bound by the CPU: {busy:.1f} of {s.threads} threads busy, memory at {percent_text(read)} of its rate"
    if busy >= BUSY_CORE:
        return "bound by the host, which starts the kernels one by one"
    return f"bound by the small kernels of each layer, which wait for one another: bus {percent_text(misses)}, memory {percent_text(read)}"


def joined(text: str, more: str) -> str:
    return "; ".join(part for part in (text, more) if part)


def rivals_of(line: Line, others: Sequence[Line]) -> dict[str, Line]:
    """What the arm is held against, by name: the cache off, and static placement in as many slots."""
    slots = line.setting.n_slots
    off = [o for o in others if is_off(o)]
    static = [o for o in others if o.setting.policy.startswith("static") and o.setting.n_slots == slots]
    return {name: found[0] for name, found in ((OFF, off), (STATIC, static)) if found}


def is_off(line: Line) -> bool:
    return not sum(line.setting.n_slots)


def holds_all(line: Line) -> bool:
    return min(line.setting.n_slots, default=0) == line.setting.n_experts


def compare(a: Line, b: Line) -> Literal["faster", "slower", "same"]:
    """Whether a's speed differs from b's by more than the runs scatter."""
    x, y = a.result, b.result
    error = (x.deviation**2 / len(x.rates) + y.deviation**2 / len(y.rates)) ** 0.5
    gap = x.mean - y.mean
    if abs(gap) <= max(SAME * y.mean, 2 * error):
        return "same"
    return "faster" if gap > 0 else "slower"


def told_as(line: Line, other: Line, text: str) -> str:
    """As in "1.54 x the speed with static placement"."""
    ratio = f"{line.result.mean / other.result.mean:.2f} x" if other.result.mean else "any multiple of"
    once = min(len(line.result.rates), len(other.result.rates)) == 1
    scatter = " (no more than the runs scatter)" if compare(line, other) == "same" else ""
    scatter += " (single runs, whose scatter is not known)" if once else ""
    return f"{ratio} the speed with {text}{scatter}"


def reason(line: Line) -> str:
    """Which of the known reasons keeps a cache from helping, "" for none."""
    s, r = line.setting, line.result
    if min(s.n_slots) < s.n_picks:
        return (
            f"it is smaller than one token's demand: {min(s.n_slots)} slots in a layer, and a token picks {s.n_picks}"
        )
    chance = sum(s.n_slots) / (len(s.n_slots) * s.n_experts)
    if r.hit_rate is not None and r.hit_rate < chance + HARDLY_REPEAT:
        return (
            f"picks hardly repeat: {percent_text(r.hit_rate)} hits, and random picks would give {percent_text(chance)}"
        )
    if r.fetch_ms is not None and r.fetch_ms * r.mean / 1e3 < IDLE_BUS:
        return f"the bus is idle, so look elsewhere: {misses_text(line)}"
    return ""


def misses_text(line: Line) -> str:
    """What misses cost."""
    r = line.result
    step = f"of {1e3 / r.mean:.3f} ms per token" if r.mean else "per token"
    text = f"misses take {r.fetch_ms or 0:.3f} ms {step} and bring {size_text(line.missed_bytes)}"
    if r.prefetched is None:
        return text
    needed, in_vain = (size_text(n * line.setting.bus_factor) for n in r.prefetched)
    return f"{text}, {needed} of it ahead; {in_vain} came in vain"
