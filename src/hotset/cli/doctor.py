"""`hotset doctor`: measure this machine once, and say what was found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.bench.units import size_text
from hotset.cli import options
from hotset.cli.output import put, put_json, say

if TYPE_CHECKING:
    from hotset.plan.hardware import GpuFigures, Machine

# A load of so many of the cores keeps some of them from what is measured.
BUSY_SHARE = 0.5
Rows = list[tuple[str, str]]


def doctor(
    again: Annotated[bool, typer.Option("--again", help="Measure anew, though figures of this machine are kept.")] = False,
    json: options.JsonOption = False,
    verbose: options.VerboseOption = False,
) -> None:  # fmt: skip
    """Measure memory, bus and GPU once; `hotset plan` and `hotset bench` forecast from the figures, which are kept in the cache directory."""
    del verbose  # read where bugs are reported
    from hotset.plan.hardware import keep_machine, known_machine, machine_key, machine_path

    key = machine_key()
    machine = None if again else known_machine(key)
    if machine is not None:
        say(f"as measured before ({machine_path(key)}); measure anew with --again")
    else:
        from hotset.plan.measure import measure_machine

        if busy := busy_text():
            say(busy)
        machine = measure_machine(lambda what: say(f"measuring {what}"))
        try:
            say(f"kept in {keep_machine(machine, key)}")
        except OSError as error:
            say(
                f"WARNING: the figures cannot be kept ({error.strerror}): set HOTSET_CACHE to a folder that can be written"
            )
    if json:
        import json as plain_json

        put_json(plain_json.loads(machine.encoded()))
        return
    rows = machine_rows(machine) + (gpu_rows(machine.gpu) if machine.gpu else [])
    rows += [(f"not measured: {what}", why) for what, why in machine.missing.items()]
    width = max(len(name) for name, _ in rows)
    put("".join(f"{name:{width}}  {value}\n" for name, value in rows))


def busy_text() -> str:
    """A warning where other programs would spoil what is measured, else ""."""
    # The kernel counts what runs on the whole machine, whatever this process may use of it.
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < BUSY_SHARE * cores:
        return ""
    return (
        f"WARNING: other programs are running (load {load:.1f} on {cores} cores), so figures may come out low; "
        "run `hotset doctor --again` when they are done"
    )


def machine_rows(m: Machine) -> Rows:
    rates = ", ".join(f"{rate / 1e9:.1f} with {n}" for n, rate in sorted(m.dram.items()))
    limit = "none" if m.memlock_bytes is None else size_text(m.memlock_bytes)
    return [
        ("processor", f"{m.cpu}, {m.cores} physical cores may be used"),
        ("host memory", f"{size_text(m.ram_bytes)}, read at {rates} threads (GB/s)"),
        ("limit on locked memory", f"{limit} (ulimit -l)"),
    ]


def gpu_rows(g: GpuFigures) -> Rows:
    from hotset.engine.nvml import link_text

    def rates(by_size: dict[int, float]) -> str:
        sizes = {n: size_text(n).replace(".00 ", " ") for n in by_size}
        return ", ".join(f"{sizes[n]} {rate / 1e9:.1f}" for n, rate in sorted(by_size.items()))

    locked, tried = size_text(g.page_locked_bytes), size_text(g.page_lock_tried)
    lock = f"{locked}, all that was tried" if g.page_locked_bytes >= g.page_lock_tried else f"{locked} of {tried} tried"
    return [
        ("GPU", f"{g.name}, compute capability {g.capability[0]}.{g.capability[1]}, {size_text(g.vram_bytes)}"),
        ("bus", link_text(g.link, g.best_link)),
        ("pinned copies, GB/s", rates(g.pinned_copy)),
        ("zero copy, GB/s", rates(g.zero_copy)),
        ("GPU memory", f"{g.memory / 1e9:,.0f} GB/s, read and written"),
        ("launch of a small kernel", f"{g.launch_s * 1e6:.2f} us alone, {g.graph_launch_s * 1e6:.2f} us in a graph"),
        ("round trip to the host", f"{g.round_trip_s * 1e6:.1f} us"),
        ("page-locking", lock),
    ]
