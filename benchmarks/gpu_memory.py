"""VRAM against the budget: the table of each budget beside what the driver counts, at its peak and once loaded.

    python benchmarks/gpu_memory.py q30.gguf --budgets 6GiB,8GiB,12GiB --ctx 8192

Every budget is loaded in a process of its own. The peak is the most that torch's allocator held and what the driver counts past it,
after a prompt that fills the context and 64 tokens. "idle" is what is neither in use nor reserve; prompts' buffers are what
could be slots while decoding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import numpy as np


def held_by(thing: Any) -> int:
    """Bytes of the tensors in an object's attributes, lists and dictionaries."""
    import torch

    if isinstance(thing, torch.Tensor):
        return thing.nbytes
    if isinstance(thing, dict):
        return sum(map(held_by, thing.values()))
    if isinstance(thing, (list, tuple)):
        return sum(map(held_by, thing))
    return sum(map(held_by, vars(thing).values())) if hasattr(thing, "__dict__") else 0


def measure(path: str, vram: str, n_ctx: int) -> dict[str, float]:
    import torch

    import hotset

    engine = hotset.load(path, device="cuda", vram=vram, n_ctx=n_ctx)
    plan, usage = engine.memory, engine.memory.usage
    tokens = np.random.default_rng(0).integers(3, engine.config.n_vocab, n_ctx - 65).tolist()
    engine.generate(tokens, max_tokens=64, temperature=0)
    torch.cuda.synchronize()
    chunks = engine.runner.chunks
    prompt_buffers = held_by(chunks.scratch) + chunks.staging.n_bytes if chunks else 0
    peak = torch.cuda.max_memory_reserved() + usage.context
    return {
        "budget": plan.budget,
        "peak": peak,
        "loaded": usage.driver,
        "reserve": plan.bytes_of("reserve"),
        "idle_share": (plan.budget - plan.bytes_of("reserve") - usage.driver) / plan.budget,
        "slots": plan.bytes_of("slots"),
        "n_slots": sum(plan.n_slots),
        "prompt_buffers": prompt_buffers,
    } | {row.name: row.n_bytes for row in plan.rows if row.where == "gpu"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--budgets", default="6GiB,8GiB,12GiB")
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.model, arguments.one, arguments.ctx)))
        return
    rows = []
    for vram in arguments.budgets.split(","):
        command = [sys.executable, __file__, arguments.model, "--one", vram, "--ctx", str(arguments.ctx)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = json.loads(answer.splitlines()[-1])
        rows.append(row)
        mib = {name: value / 2**20 for name, value in row.items()}
        print(
            f"{vram}: peak {mib['peak']:,.0f} of {mib['budget']:,.0f} MiB, loaded {mib['loaded']:,.0f}, reserve {mib['reserve']:,.0f}, "
            f"idle {100 * row['idle_share']:.1f} %, slots {mib['slots']:,.0f} ({row['n_slots']:,}), prompts' buffers {mib['prompt_buffers']:,.0f} "
            f"= {100 * row['prompt_buffers'] / row['slots']:.1f} % of slots",
            flush=True,
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
