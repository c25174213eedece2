"""What of the experts the GPU reads straight from host memory, and what becomes of the rest."""

from __future__ import annotations

import time
from collections.abc import Callable

from hotset.engine.memory import MIB
from hotset.experts.bank import ExpertBank
from hotset.experts.bounce import Bounce, Locker
from hotset.experts.relay import HostCall, Relay


def page_lock(
    bank: ExpertBank,
    locker: Locker,
    limit: int | None,
    n_spans: int,
    progress: Callable[[int], None] = lambda _: None,
    ready: Callable[[int], None] = lambda _: None,
) -> str | None:
    """Page-lock the bank, or what `limit` and the driver let be, with a bounce buffer of up to `n_spans` for the rest: then a line that says what that costs.

    `progress` and `ready`: see ExpertBank.page_lock. DeviceError where the driver refuses the bounce buffer too.
    """
    willing = bank.page_lock(locker, limit, progress, ready)
    ready(bank.n_bytes)
    if bank.locked_bytes == bank.n_bytes:
        return None
    bank.bounce = Bounce(locker, max(bank.span_bytes), n_spans)
    n = sum(not bank.is_locked(layer) for layer in range(len(bank.spans)))
    return (
        f"{bank.locked_bytes / MIB:,.0f} of {bank.n_bytes / MIB:,.0f} MiB of the experts are page-locked "
        f"({'as asked' if willing else 'the driver refused more'}): in {n} of {len(bank.spans)} layers one CPU thread copies every missed "
        f"expert, here at {copy_rate(bank) / 1e9:.0f} GB/s, before the GPU fetches it; results stay the same. More can be locked with a "
        "higher limit (--page-lock, ulimit -l, or memory given to the virtual machine)"
    )


def copy_rate(bank: ExpertBank) -> float:
    """Bytes per second of one thread from the bank's end to the bounce buffer."""
    assert bank.bounce
    target = bank.bounce.data
    source = bank.data[-target.nbytes :]
    target[: source.nbytes] = source  # touched once, so that no page is new
    began = time.perf_counter()
    target[: source.nbytes] = source
    return source.nbytes / max(time.perf_counter() - began, 1e-9)


def relay_for(bank: ExpertBank, max_picks: int, call: HostCall | None) -> Relay | None:
    """What brings the misses of a bank that is not page-locked as a whole; None for one that is."""
    return Relay(bank, bank.bounce, max_picks, call) if bank.bounce else None
