"""Every policy on every recorded trace: the tables of docs/policies.md.

python benchmarks/policies.py TRACE.npz ... [--first 30000] [--page docs/policies.md]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from tables import fill, markdown

from hotset.experts.trace import Trace
from hotset.host.threads import available_cores
from hotset.lab.policies import NOT_IN_ALL, LabPolicy, parse_policies
from hotset.lab.study import Outcome, Study

SIZES = {"layer": ("1/8", "1/4", "3/8", "1/2", "3/4"), "global": ("1/4", "1/2"), "marginal": ("1/4", "1/2")}
# What the marginal pool gains shows on few.
FEW = "lru,lrfu:16,belady"


def outcomes(trace: Trace) -> Iterator[Outcome]:
    study = Study(trace, available_cores())
    every = parse_policies(",".join(("all", *NOT_IN_ALL)))
    for pool, sizes in SIZES.items():
        policies = parse_policies(FEW) if pool == "marginal" else every
        began = time.perf_counter()
        yield from study.outcomes(policies, [pool], [Fraction(size) for size in sizes])
        sys.stderr.write(f"  {pool}: {time.perf_counter() - began:.0f} s\n")


def table(found: list[Outcome]) -> str:
    """A row for each policy, a column for each pool and size; the interval is that of the hit rate at a quarter of the slots per layer."""
    cells = {(o.policy, o.pool, o.slots): o for o in found}
    columns = [(pool, float(Fraction(size))) for pool, sizes in SIZES.items() for size in sizes]
    headers = ["policy", *(f"{pool} {100 * size:g} %" for pool, size in columns), "95 % at layer 25 %"]

    def row(policy: LabPolicy) -> list[str]:
        rates = [cells.get((policy, *column)) for column in columns]
        quarter = cells.get((policy, "layer", 0.25))
        between = "{:.3f} to {:.3f}".format(*quarter.hit_rate_95) if quarter and quarter.hit_rate_95 else ""
        return [str(policy), *("" if o is None else f"{o.hit_rate:.3f}" for o in rates), between]

    return markdown(headers, [row(p) for p in dict.fromkeys(o.policy for o in found) if p.name != "unbounded"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--first", type=int, default=30_000)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    parts = []
    for path in options.traces:
        trace = Trace.read(path).first(options.first)
        name = path.name.removesuffix(".npz")
        sys.stderr.write(f"{name}\n")
        shape = f"{trace.n_layers} layers, {trace.n_experts} experts, {trace.k} picked"
        head = f"{name}: {trace.n_tokens:,} tokens of {len(trace.offsets) - 1} answers, {shape}\n\n"
        parts.append(head + table(list(outcomes(trace))))
        sys.stdout.write(parts[-1] + "\n")
        sys.stdout.flush()
    if options.page:
        fill(options.page, "policies", "\n" + "\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
