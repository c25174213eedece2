"""How fast the fetch kernel brings experts over the bus, beside the machine's own pinned copy: run on a GPU.

The ceiling is the pinned copy at the same size, measured in the same run; page-locked memory is used as the bank does it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial

import torch

from hotset.experts.bank import ExpertBank
from hotset.kernels.fetch import FETCH_LAUNCH, FetchLaunch, fetch
from hotset.quant.formats import FORMATS
from hotset.quant.layout import MatrixLayout, SpanLayout

ROUNDS = 20
LAUNCHES = (
    FETCH_LAUNCH,
    *(FetchLaunch(p, b, w) for p in (8, 16, 24, 32) for b, w in ((1024, 4), (2048, 8), (4096, 8))),
)


def expert_span() -> SpanLayout:
    """An expert of Qwen3-30B-A3B in Q4_K: 2.65 MB in the file."""
    q4 = FORMATS[12]
    return SpanLayout(("gate", "up", "down"), (MatrixLayout(q4, 768, 2048),) * 2 + (MatrixLayout(q4, 2048, 768),))


def timed(work: Callable[[], None], n_bytes: int) -> float:
    """Median GB/s over ROUNDS."""
    rates = []
    for _ in range(ROUNDS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        rates.append(n_bytes / begin.elapsed_time(end) / 1e6)
    return statistics.median(rates[3:])


def copy(target: torch.Tensor, source: torch.Tensor, n_bytes: int) -> None:
    target[:n_bytes].copy_(source[:n_bytes], non_blocking=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=512, help="spans in the bank")
    arguments = parser.parse_args()
    span = expert_span()
    bank = ExpertBank((span,), arguments.experts)
    bank.data[:] = 1
    bank.page_lock(torch.cuda.cudart())
    size = span.n_bytes
    pool = torch.empty(64 * size, dtype=torch.uint8, device="cuda")
    host = torch.from_numpy(bank.data)
    generator = torch.Generator().manual_seed(0)
    copies = {n: timed(partial(copy, pool, host, n * size), n * size) for n in (1, 8)}
    rows = []
    for launch in LAUNCHES:
        for n in (1, 2, 4, 8):
            chosen = torch.randperm(arguments.experts, generator=generator)[:n]
            source = (bank.base[0] + chosen * size).cuda()
            target = pool.data_ptr() + torch.arange(n, device="cuda") * size
            count = torch.tensor([n], dtype=torch.int32, device="cuda")
            rate = timed(partial(fetch, source, target, count, size, launch), n * size)
            rows.append({"launch": str(launch), "experts": n, "gb_per_s": rate})
    for n, rate in copies.items():
        print(f"pinned copy, {n} x {size / 1e6:.2f} MB: {rate:.1f} GB/s")
    for launch in dict.fromkeys(r["launch"] for r in rows):
        rates = [f"{r['gb_per_s']:.1f}" for r in rows if r["launch"] == launch]
        print(launch, "1, 2, 4, 8 experts:", ", ".join(rates), "GB/s")
    print(json.dumps({"span_bytes": size, "pinned_copy": copies, "fetch": rows}))


if __name__ == "__main__":
    main()
