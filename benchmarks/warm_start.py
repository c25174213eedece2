"""Hit rate of the first tokens of a text on an expert cache that begins cold, and on one that begins with what other text used.

    python benchmarks/warm_start.py lab-moe-Q4_K_M.gguf held.txt

The text is cut into windows, fed token by token to the CPU engine, which counts what a GPU cache would hit. The even windows are read first,
each as an answer, and leave their heat; the odd ones are what is measured, each on a cache that begins anew. The steady state is the
hit rate of the rest of those windows. Keeps its profile in a folder of its own. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotset.engine.engine import Engine
    from hotset.engine.runner import Session

FIRST = 64


def feed(engine: Engine, session: Session, tokens: Sequence[int]) -> tuple[int, int]:
    """Hits and distinct experts needed while these tokens are fed one by one."""
    engine.reset_stats()
    for token in tokens:
        session.feed([token])
    stats = engine.stats().prompt
    return stats.hits, stats.hits + stats.misses


def measure(
    model: str, windows: Sequence[Sequence[int]], size: str, policy: str, *, warm: bool, deal: bool
) -> dict[str, float]:
    """Hit rates of the first tokens, and of the rest, over windows that each begin on a new cache."""
    import hotset

    engine = hotset.load(
        model, device="cpu", expert_cache=size, policy=policy, warm_start=warm, slots_from_profile=deal, threads=2
    )
    counts = [[0, 0], [0, 0]]
    for window in windows:
        engine.runner.reset_cache()
        if warm:
            engine.warm_start.fill(engine.runner.cache)
        session = engine.session(len(window) + 1)
        for count, part in zip(counts, (window[:FIRST], window[FIRST:]), strict=True):
            for i, n in enumerate(feed(engine, session, part)):
                count[i] += n
    first, rest = (hits / needed for hits, needed in counts)
    return {"first": first, "steady": rest, "share": first / rest}


def learn(model: str, windows: Sequence[Sequence[int]], size: str, policy: str) -> None:
    """Run the engine over some windows, and keep their heat and picks."""
    import hotset

    engine = hotset.load(
        model, device="cpu", expert_cache=size, policy=policy, warm_start=True, slots_from_profile=True, threads=2
    )
    for window in windows:
        feed(engine, engine.session(len(window) + 1), window)
        engine.note_heat()
    engine.warm_start.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--expert-cache", default="25%")
    parser.add_argument("--policy", default="lrfu:16")
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=16, help="windows, of which half are measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        os.environ["HOTSET_CACHE"] = folder
        import hotset

        ids = hotset.load(options.model, device="cpu").tokenize(options.text.read_text(encoding="utf-8"))
        # From all over the text: its parts differ.
        starts = [len(ids) * i // options.windows for i in range(options.windows)]
        windows = [ids[s : s + options.window] for s in starts]
        given = (options.model, windows[1::2], options.expert_cache, options.policy)
        results = {"cold": measure(*given, warm=False, deal=False)}
        learn(options.model, windows[::2], options.expert_cache, options.policy)
        results["warm"] = measure(*given, warm=True, deal=False)
        results["warm, slots dealt"] = measure(*given, warm=True, deal=True)
    for name, r in results.items():
        print(f"| {name} | {100 * r['first']:.1f} % | {100 * r['steady']:.1f} % | {100 * r['share']:.0f} % |")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
