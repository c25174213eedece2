"""What watching the expert map costs: decode speed while someone asks for pictures as the page does, against nobody asking.

    python benchmarks/page_watch.py                       # the demo model
    python benchmarks/page_watch.py --model X.gguf --tokens 256 --rounds 9

It starts `hotset serve` itself and alternates rounds with and without a watcher, so that a busy machine slows both. Shown are the median
speeds, the median ratio of neighbouring rounds, pictures per second and the size of one. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from statistics import median
from typing import Self

# As cache_panel.js does.
PERIOD_S = 0.2
CTX = 1024


class Watcher:
    """Asks for pictures until it is told to stop."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.n_pictures = 0
        self.n_bytes = 0

    def __enter__(self) -> Self:
        self._begin = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begin
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        step = 0
        while not self._stop.is_set():
            begin = time.perf_counter()
            self._connection.request("GET", f"/v1/experts?since={step}")
            body = self._connection.getresponse().read()
            step = json.loads(body)["step"]
            self.n_pictures += 1
            self.n_bytes += len(body)
            self._stop.wait(max(0.0, begin + PERIOD_S - time.perf_counter()))


def decode_speed(address: str, n_tokens: int) -> float:
    """Tokens per second of one answer, as the server counts them."""
    connection = http.client.HTTPConnection(address)
    body = {"prompt": "The package", "max_tokens": n_tokens, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    timings = json.loads(connection.getresponse().read())["timings"]
    return float(timings["predicted_per_second"])


def measure(address: str, n_tokens: int, n_rounds: int) -> dict[str, float]:
    """Both speeds and what the watcher saw."""
    decode_speed(address, n_tokens)
    alone, watched, pictures, sizes = [], [], [], []
    for _ in range(n_rounds):
        alone.append(decode_speed(address, n_tokens))
        with Watcher(address) as watcher:
            watched.append(decode_speed(address, n_tokens))
        pictures.append(watcher.n_pictures / watcher.seconds)
        sizes.append(watcher.n_bytes / watcher.n_pictures)
    # Each watched round against the mean of those before and after it, so that a drift of the machine cancels.
    alone.append(decode_speed(address, n_tokens))
    ratios = [2 * one / (before + after) for one, before, after in zip(watched, alone, alone[1:], strict=False)]
    return {
        "alone": median(alone),
        "watched": median(watched),
        "ratio": median(ratios),
        "pictures_per_second": median(pictures),
        "picture_bytes": median(sizes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    command = ["-m", "hotset", "serve", options.model, "--port", "0", "-c", str(CTX), "-t", str(options.threads)]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        log = iter(server.stderr.readline, "")
        address = next(found[1] for line in log if (found := re.search(r"http://(\S+)", line)))
        next(line for line in log if "ready:" in line)
        threading.Thread(target=lambda: list(log), daemon=True).start()
        found = measure(address, options.tokens, options.rounds)
        server.terminate()
    print(
        f"{found['alone']:.1f} tok/s alone, {found['watched']:.1f} watched: ratio {found['ratio']:.3f}, "
        f"{found['pictures_per_second']:.1f} pictures/s of {found['picture_bytes'] / 1024:.1f} KiB"
    )
    print(json.dumps({"model": options.model, "threads": options.threads, **found}))


if __name__ == "__main__":
    main()
