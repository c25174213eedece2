"""How many experts of each layer the cache can hold: sizes as users write them, and slots per layer."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from hotset.errors import InputError
from hotset.kernels.counts import next_power_of_2

if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
ACCEPTED = "6GiB (or KB, MB, GB, KiB, MiB), 25%, 16slots, auto, off"


def parse_bytes(text: str, name: str = "size") -> int:
    """Read `8GiB`, `500 MB` or `1.5TB`; `name` is what a message calls the argument."""
    number, unit = _number_and_unit(text)
    if number is None or unit not in UNITS:
        raise InputError(f"{name} {text!r} is no number of bytes; write a number and a unit, as in 8GiB, 8GB or 500MiB")
    return int(number * UNITS[unit])


@dataclass(frozen=True)
class CacheSize:
    """The size of the expert cache as asked for: `amount` is bytes, percent or slots per layer."""

    kind: Literal["bytes", "percent", "slots", "auto", "off"]
    amount: Fraction = Fraction(0)

    @staticmethod
    def parse(text: str) -> CacheSize:
        """Read what --expert-cache takes."""
        word = str(text).strip().lower()
        if word == "auto":
            return CacheSize("auto")
        if word == "off":
            return CacheSize("off")
        number, unit = _number_and_unit(word)
        if number is not None:
            if unit == "%" and number <= 100:
                return CacheSize("percent", number)
            if unit in ("slot", "slots") and number.denominator == 1:
                return CacheSize("slots", number)
            if unit in UNITS:
                return CacheSize("bytes", Fraction(int(number * UNITS[unit])))
        raise InputError(f"expert cache {text!r} is no size; accepted are {ACCEPTED}")

    def n_slots(self, span_bytes: Sequence[int], n_experts: Sequence[int], budget: int = 0) -> tuple[int, ...]:
        """Slots of each layer, never more than it has experts; `budget` is the bytes that `auto` may take."""
        if self.kind == "percent":
            return tuple(int(n * self.amount / 100) for n in n_experts)
        if self.kind == "slots":
            return tuple(min(n, int(self.amount)) for n in n_experts)
        if self.kind == "off":
            return (0,) * len(n_experts)
        return equal_share(span_bytes, n_experts, budget if self.kind == "auto" else int(self.amount))


def equal_share(span_bytes: Sequence[int], n_experts: Sequence[int], budget: int) -> tuple[int, ...]:
    """Slots for the same fraction of every layer's experts, as many as `budget` bytes hold; what is left goes to the first layers.

    Slots are dealt one by one to the layer with the smallest fraction after the deal; a layer whose span no longer fits drops out.
    """
    slots = [0] * len(n_experts)
    queue = [(Fraction(1, n), layer) for layer, n in enumerate(n_experts) if n > 0]
    heapq.heapify(queue)
    while queue:
        _, layer = heapq.heappop(queue)
        if span_bytes[layer] > budget:
            continue
        budget -= span_bytes[layer]
        slots[layer] += 1
        if slots[layer] < n_experts[layer]:
            heapq.heappush(queue, (Fraction(slots[layer] + 1, n_experts[layer]), layer))
    return tuple(slots)


@dataclass(frozen=True)
class CacheShape:
    """What an expert cache is made for; per layer: bytes of a span, experts, slots."""

    span_bytes: tuple[int, ...]
    n_experts: tuple[int, ...]
    n_slots: tuple[int, ...]
    k: int
    max_rows: int

    def __post_init__(self) -> None:
        if not len(self.span_bytes) == len(self.n_experts) == len(self.n_slots):
            raise InputError(
                f"expert cache of {len(self.span_bytes)} span sizes, {len(self.n_experts)} expert counts and "
                f"{len(self.n_slots)} slot counts; give one of each per layer"
            )
        for layer, (span, experts, slots) in enumerate(zip(self.span_bytes, self.n_experts, self.n_slots, strict=True)):
            if span <= 0 or span % 256:
                raise InputError(f"layer {layer}: a span of {span} bytes; spans are padded to multiples of 256")
            if not 0 <= slots <= experts:
                raise InputError(f"layer {layer}: {slots} slots; it has {experts} experts, so give 0 to {experts}")
            if not 1 <= self.k <= experts:
                raise InputError(
                    f"layer {layer}: {self.k} picks per token; it has {experts} experts, so 1 to {experts}"
                )
        if self.max_rows < 1:
            raise InputError(f"expert cache for {self.max_rows} rows; give at least 1")

    @property
    def n_layers(self) -> int:
        return len(self.span_bytes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(span * slots for span, slots in zip(self.span_bytes, self.n_slots, strict=True))

    @property
    def overflow_bytes(self) -> int:
        """Bytes of the overflow area, which all layers use in turn."""
        return self.max_rows * self.k * max(self.span_bytes, default=0)

    @property
    def odds_bytes(self) -> int:
        """Bytes of what prefetching learns of every layer, see guess.Guesses: float16 for each pair of experts, and for each expert."""
        padded = next_power_of_2(max(self.n_experts, default=1))
        return 2 * self.n_layers * (padded + 1) * padded if self.n_layers > 1 else 0


def _number_and_unit(text: str) -> tuple[Fraction | None, str]:
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]+|%)\s*", str(text).lower())
    return (Fraction(match[1]), match[2]) if match else (None, "")
