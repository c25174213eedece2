"""Numbers as people read them."""

from __future__ import annotations

KIB = 1 << 10
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_COUNTS = ("", " K", " M", " B", " T")


def size_text(n: float) -> str:
    """Bytes: "7.61 MiB"."""
    return _scaled(n, KIB, _SIZES, " ")


def count_text(n: float) -> str:
    """A count: "11.71 M"."""
    return _scaled(n, 1000, _COUNTS, "")


def number_text(n: int, noun: str) -> str:
    """As in "1 run" and "1,200 runs"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _scaled(n: float, base: int, units: tuple[str, ...], space: str) -> str:
    power = 0
    while n >= base and power + 1 < len(units):
        n /= base
        power += 1
    return f"{n:.2f}{space}{units[power]}" if power else f"{n:.0f}{space}{units[0]}"


def percent_text(fraction: float | None) -> str:
    """A fraction as percent: "63.8 %"; "-" where it is not known."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"
