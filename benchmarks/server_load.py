"""A server under load: wrong answers (against the same requests asked one by one), stuck lanes, memory, and how long a short request waits.

    python benchmarks/server_load.py                      # the demo model, 32 clients for 60 s
    python benchmarks/server_load.py --model X.gguf --clients 8 --seconds 20

It starts `hotset serve` itself. Clients stream short and long prompts with seeds of their own, and every fifth leaves before its answer
ends. Beside that it measures one stream against the engine without a server, four streams against one, and the wait for the first token of
a short request beside a prompt of 1,500 tokens, in chunks of such a prompt. The last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import hotset
from hotset.engine.host import CHUNK

CTX = 2048
LONG = 1500
PARALLEL = 4
N_REQUESTS = 24
N_TOKENS = 48
LEAVES = 5
WORDS = [
    "The",
    "package",
    "contains",
    "the",
    "header",
    "files",
    "and",
    "static",
    "library",
    "of",
    "a",
    "cache",
    "experts",
    ".",
]
RATE_TOKENS = 200
ROUNDS = 15


@dataclass
class Outcome:
    """What the clients saw."""

    answers: int = 0
    wrong: int = 0
    refused: int = 0
    left: int = 0
    tokens: int = 0
    first_ms: list[float] = field(default_factory=list)


class Server:
    """A `hotset serve` of our own."""

    def __init__(self, args: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "hotset", "serve", args.model, "--port", "0", "--device", args.device]
        threads = ["-t", str(args.threads)] if args.threads else []
        self._process = subprocess.Popen(
            [*command, "-c", str(CTX), "--parallel", str(PARALLEL), *threads], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        self.port = 0
        for line in self._process.stderr:
            if found := re.search(r"listening on http://[^:]+:(\d+)", line):
                self.port = int(found[1])
            if line.startswith("ready:"):
                return
        raise SystemExit("the server did not start")

    def rss(self) -> int:
        """Bytes of memory that it holds."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]

    def cpu_s(self) -> float:
        """Seconds of CPU time that it used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> int:
        self._process.terminate()
        return self._process.wait(60)

    async def events(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Events of a streamed completion; closing it closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent = json.dumps({**body, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        writer.write(head.encode() + sent)
        try:
            status = await reader.readline()
            if b" 200 " not in status:
                yield {"status": int(status.split()[1])}
                return
            async for line in reader:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])
        finally:
            writer.close()

    async def text(self, body: dict[str, Any]) -> tuple[str, float, dict[str, Any]]:
        """An answer, the ms until its first text, and the timings of its end."""
        began, first, pieces, times = time.perf_counter(), 0.0, [], {}
        async for event in self.events(body):
            if "status" in event:
                raise RuntimeError(f"status {event['status']}")
            first = first or 1e3 * (time.perf_counter() - began)
            pieces.append(event["choices"][0]["text"])
            times = event.get("timings", times)
        return "".join(pieces), first, times

    async def get(self, path: str) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        return json.loads(body)


def requests(n: int) -> list[dict[str, Any]]:
    """Short and long prompts, each with a seed of its own; every fourth is long, and some share a beginning."""
    shared = " ".join(random.Random(0).choices(WORDS, k=300))  # noqa: S311
    found = []
    for seed in range(n):
        chance = random.Random(seed)  # noqa: S311
        words = " ".join(chance.choices(WORDS, k=400 if seed % 4 == 0 else 12))
        prompt = f"{shared} {words}" if seed % 3 == 0 else words
        found.append({"prompt": prompt, "seed": seed, "max_tokens": N_TOKENS, "temperature": 1.0})
    return found


async def client(
    server: Server, number: int, asked: list[dict[str, Any]], expected: list[str], end: float, seen: Outcome
) -> None:
    chance = random.Random(1000 + number)  # noqa: S311
    while time.monotonic() < end:
        i = chance.randrange(len(asked))
        leaves_after = chance.randrange(8) if chance.randrange(LEAVES) == 0 else None
        began, text, n, status = time.perf_counter(), "", 0, 200
        async with aclosing(server.events(asked[i])) as events:
            async for event in events:
                status = event.get("status", 200)
                if status != 200 or leaves_after == n:
                    break
                if not n:
                    seen.first_ms.append(1e3 * (time.perf_counter() - began))
                n += 1
                text += event["choices"][0]["text"]
        seen.tokens += n
        if status != 200:
            seen.refused += 1
            await asyncio.sleep(0.2)
        elif leaves_after is not None and leaves_after == n:
            seen.left += 1
        else:
            seen.answers += 1
            seen.wrong += text != expected[i]


async def load(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """The clients all at once; what they saw and what became of the server."""
    asked = requests(N_REQUESTS)
    expected = [(await server.text(one))[0] for one in asked]
    seen, rss = Outcome(), []
    end = time.monotonic() + args.seconds
    clients = [asyncio.create_task(client(server, i, asked, expected, end, seen)) for i in range(args.clients)]
    while time.monotonic() < end:
        await asyncio.sleep(args.seconds / 30)
        rss.append(server.rss())
    await asyncio.gather(*clients)
    await asyncio.sleep(1)
    warm = rss[len(rss) // 3 :]
    stuck = sum(slot["is_processing"] for slot in await server.get("/slots"))
    return {
        "answers": seen.answers,
        "wrong": seen.wrong,
        "refused": seen.refused,
        "left": seen.left,
        "stuck": stuck,
        "tokens_per_s": seen.tokens / args.seconds,
        "rss_mib": median(warm) / 2**20,
        "rss_spread": (max(warm) - min(warm)) / median(warm),
    }


async def short_wait(server: Server, n: int = 12) -> dict[str, Any]:
    """The wait for the first token of a short request beside a long prompt, in chunks of that prompt."""
    waits, chunks = [], []
    for i in range(n):
        chance = random.Random(5000 + i)  # noqa: S311
        ids = [chance.randrange(300, 4000) for _ in range(LONG)]
        long = asyncio.create_task(server.text({"prompt": ids, "max_tokens": 2}))
        await asyncio.sleep(0.01)
        waits.append((await server.text({"prompt": ids[:8], "max_tokens": 2, "seed": i}))[1])
        times = (await long)[2]
        chunks.append(times["prompt_ms"] / -(-times["prompt_n"] // CHUNK))
    return {
        "wait_ms": median(waits),
        "worst_ms": max(waits),
        "chunk_ms": median(chunks),
        "worst_in_chunks": max(waits) / median(chunks),
    }


async def rates(server: Server, engine: hotset.Engine) -> dict[str, Any]:
    """One stream against the engine without a server, and four streams against one, in turns; of each the best, as other work only slows."""
    body = {
        "prompt": "The package",
        "max_tokens": RATE_TOKENS,
        "temperature": 0,
        "logit_bias": {str(t): -100 for t in engine.end_ids},
    }
    bias = dict.fromkeys(engine.end_ids, -100.0)
    plain, one, four = [], [], []
    for _ in range(ROUNDS):
        plain.append(
            engine.generate("The package", max_tokens=RATE_TOKENS, temperature=0, logit_bias=bias).tokens_per_s
        )
        one.append((await server.text(body))[2]["predicted_per_second"])
        began = time.perf_counter()
        await asyncio.gather(*(server.text({**body, "prompt": f"The package {i}"}) for i in range(4)))
        four.append(4 * RATE_TOKENS / (time.perf_counter() - began))
    return {
        "engine": max(plain),
        "server": max(one),
        "overhead": 1 - max(one) / max(plain),
        "four_streams": max(four),
        "four_to_one": max(four) / max(one),
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    server = Server(args)
    try:
        engine = hotset.load(args.model, device=args.device, threads=args.threads, n_ctx=CTX)
        result = {"rates": await rates(server, engine)}
        del engine
        result["short"] = await short_wait(server)
        result["load"] = await load(server, args)
    finally:
        code = server.close()
    return {
        "model": args.model,
        "clients": args.clients,
        "seconds": args.seconds,
        "cpus": os.cpu_count(),
        "exit": code,
        **result,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
