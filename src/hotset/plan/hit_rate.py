"""The hit rate to expect: replayed from a trace where there is one, else from a curve fitted to recorded routing of two models.

    logit(hit rate) = a + b x + c x^2 with x = logit(slots / experts)

The curve is for the default policy on text, in steady state. Models differ more than it can know; the band says how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from hotset.errors import InputError
from hotset.experts.policy import Policy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hotset.experts.trace import Trace
    from hotset.lab.requests import Requests

# What `hotset simulate --slots 12.5%..87.5%:12.5% --policy lrfu:16` says of all recorded answers of each model.
FRACTIONS = tuple(i / 8 for i in range(1, 8))
RECORDED: dict[str, tuple[float, ...]] = {
    "gpt-oss-20b": (0.4400, 0.6926, 0.8318, 0.9117, 0.9565, 0.9814, 0.9946),
    "olmoe-1b-7b": (0.4265, 0.6411, 0.7637, 0.8531, 0.9173, 0.9615, 0.9889),
}
CURVE_POLICY = "lrfu:16"
# Errors of the fit (in logits, root of the mean square over a trace that it was not made of) that the band spans on either side.
BAND = 2.0


@dataclass(frozen=True)
class HitRate:
    """A hit rate and what it may come to; `source` says how it is known."""

    low: float
    expected: float
    high: float
    source: str

    @property
    def all(self) -> tuple[float, float, float]:
        return self.low, self.expected, self.high


def fit(curves: Iterable[Sequence[float]]) -> NDArray[np.float64]:
    """The coefficients a, b, c with the least squared error in logits over some recorded curves."""
    rows = [(logit(f), logit(h)) for curve in curves for f, h in zip(FRACTIONS, curve, strict=True)]
    x, y = np.array(rows).T
    found: NDArray[np.float64] = np.linalg.lstsq(np.stack([x**0, x, x**2], 1), y, rcond=None)[0]
    return found


@cache
def fitted() -> NDArray[np.float64]:
    """The coefficients in use, made of all that was recorded."""
    return fit(RECORDED.values())


def curve(fraction: float, coefficients: NDArray[np.float64], shift: float = 0.0) -> float:
    """The hit rate with so large a part of the experts in slots; `shift` in logits."""
    if not 0 < fraction < 1:
        return float(fraction >= 1)
    x = logit(fraction)
    a, b, c = coefficients
    return float(1 / (1 + np.exp(-(a + b * x + c * x * x + shift))))


def errors_left_out(recorded: Mapping[str, Sequence[float]] = RECORDED) -> dict[str, NDArray[np.float64]]:
    """By trace the forecast hit rate minus the recorded one, at each of FRACTIONS, fitted to the other traces alone."""
    return {
        name: np.array([curve(f, fit(v for n, v in recorded.items() if n != name)) for f in FRACTIONS]) - known
        for name, known in recorded.items()
    }


@cache
def spread() -> float:
    """The root mean square error in logits over traces that the curve was not fitted to."""
    errors = [
        logit(known + error) - logit(known)
        for name, found in errors_left_out().items()
        for known, error in zip(RECORDED[name], found, strict=True)
    ]
    return float(np.sqrt(np.mean(np.square(errors))))


def expected_hit_rate(n_slots: Sequence[int], n_experts: int, n_picks: int) -> HitRate:
    """Without a trace: slots of each layer, all of `n_experts`. Fewer slots than a token picks hit at most their share of the picks."""
    shifts = (-BAND * spread(), 0.0, BAND * spread())

    def mean(shift: float) -> float:
        rates = [min(curve(n / n_experts, fitted(), shift), n / n_picks) for n in n_slots]
        return float(np.mean(rates)) if rates else 1.0

    low, expected, high = map(mean, shifts)
    return HitRate(low, expected, high, f"a curve fitted to recorded routing of {' and '.join(RECORDED)}")


def policy_hit_rate(policy: Policy, n_slots: Sequence[int], n_experts: int, n_picks: int) -> HitRate:
    """The same under a policy: `static` hits as its experts are picked, each as often as any other; the rest are told apart from the curve's own."""
    if policy.name == "static":
        share = float(np.mean(n_slots)) / n_experts if n_slots else 1.0
        return HitRate(share, share, share, "static placement hits as often as it has slots, on average")
    found = expected_hit_rate(n_slots, n_experts, n_picks)
    if str(policy) == CURVE_POLICY:
        return found
    return replace(found, source=f"a curve fitted to recorded routing under {CURVE_POLICY}; give --trace for {policy}")


class TraceHits:
    """Hit rates replayed from a trace of the model, from a cold start."""

    def __init__(self, trace: Trace, policy: str, name: str) -> None:
        from hotset.lab.policies import LabPolicy
        from hotset.lab.requests import layer_requests

        self.trace = trace
        self._name = name
        self._policy = LabPolicy.parse(policy)
        self._layers = [layer_requests(trace, layer) for layer in range(trace.n_layers)]

    def check(self, n_layers: int, n_experts: int, n_picks: int) -> None:
        """InputError where the trace is of another model."""
        found = (self.trace.n_layers, self.trace.n_experts, self.trace.k)
        if found != (n_layers, n_experts, n_picks):
            raise InputError(
                f"the trace {self._name} is of {found[0]} layers with {found[1]} experts, {found[2]} picked, and the model has "
                f"{n_layers} with {n_experts}, {n_picks} picked; record one with `hotset trace`"
            )

    def at(self, n_slots: Sequence[int]) -> HitRate:
        """With so many slots in each layer; the band is the 95 % interval over answers."""
        from hotset.lab.intervals import interval

        found = [self._hits(requests, n) for requests, n in zip(self._layers, n_slots, strict=True)]
        hits = np.sum(found, axis=0)
        needed = np.sum([requests.needed[:, 0] for requests in self._layers], axis=0)
        rate = float(hits.sum() / needed.sum())
        low, high = interval(hits, needed) or (rate, rate)
        return HitRate(low, rate, high, f"replay of {self._name}")

    def _hits(self, requests: Requests, n_slots: int) -> NDArray[np.int64]:
        """Hits of every answer. The laboratory's `static` ranks experts by use; the expert cache's holds the first ones."""
        if self._policy.name != "static":
            return self._policy.hits(requests, n_slots)[:, 0]
        hits = (requests.experts < n_slots).sum(1)
        return np.bincount(requests.answer, hits, requests.n_answers).astype(np.int64)


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))
