"""What serving costs one stream: `hotset serve` against what `hotset run` does, in turns, each in a process of its own.

    python benchmarks/server_overhead.py --threads 1                   # the demo model
    python benchmarks/server_overhead.py --model X.gguf --rounds 25

A round decodes the same tokens of the same prompt twice: by the loop of `hotset run`, its text written to nowhere, and by a stream of
/v1/chat/completions, read by a client that only counts events. Both speeds are of the tokens after the first, as their reader sees them.
The server computes while its client reads, so a core is shared where there are no more cores than threads: one thread of two cores shows the
server's own cost, as many threads as cores what is lost to that as well. The last line of stdout is JSON: medians over the rounds, the
overhead as the median of the rounds' own ratios, and CPU times per token.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from server_load import CTX, Server

import hotset
from hotset.cli.answer import Interrupt, stream_answer

CONTENT = "The package"
WARM_UP = 2


class Clock:
    """Notes when the first and the last of something came."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    def tick(self) -> None:
        self.last = time.perf_counter()
        self.first = self.first or self.last

    def rate(self, n: int) -> float:
        """How many a second, where `n` came; the first began the time."""
        return (n - 1) / (self.last - self.first)


def run_alone(connection: Connection, args: argparse.Namespace) -> None:
    """Tell the tokens that end a text, take a prompt, then answer it as `hotset run` does whenever asked, and tell how fast."""
    engine = hotset.load(args.model, device=args.device, threads=args.threads, n_ctx=CTX)
    connection.send(sorted(engine.end_ids))
    prompt, bias = connection.recv()
    with Path(os.devnull).open("w") as nowhere, Interrupt() as interrupt:
        while connection.recv():
            clock, cpu = Clock(), time.process_time()

            def write(text: str, clock: Clock = clock) -> None:
                nowhere.write(text)
                nowhere.flush()
                clock.tick()

            stream_answer(
                engine.stream(prompt, max_tokens=args.tokens, temperature=0, logit_bias=bias), write, interrupt
            )
            connection.send((clock.rate(args.tokens), time.process_time() - cpu))


def ask(server: Server, path: str, body: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


def read_stream(server: Server, body: bytes, n_tokens: int) -> float:
    """Tokens per second of one streamed answer, read by a plain socket; the first text begins the time, the last byte ends it."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    clock, seen = Clock(), b""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + body)
        while data := connection.recv(1 << 16):
            if clock.first or b'"content":"' in data.replace(b'"content":""', b""):
                clock.tick()
            seen = (seen + data)[-1000:]
    if b"[DONE]" not in seen:
        raise SystemExit(f"the server's answer broke off: {seen!r}")
    return clock.rate(n_tokens)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    alone, far_end = context.Pipe()
    child = context.Process(target=run_alone, args=(far_end, args), daemon=True)
    child.start()
    end_ids = alone.recv()
    server = Server(args)
    try:
        messages = [{"role": "user", "content": CONTENT}]
        text = ask(server, "/apply-template", {"messages": messages})["prompt"]
        prompt = ask(server, "/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        bias = dict.fromkeys(end_ids, -100.0)  # all answers are of one length
        asked = {"messages": messages, "max_tokens": args.tokens, "temperature": 0, "logit_bias": bias, "stream": True}
        body = json.dumps(asked).encode()
        alone.send((prompt, bias))
        rates, run_s = [], 0.0
        for i in range(WARM_UP + args.rounds):
            if i == WARM_UP:
                rates, run_s, server_s, client_s = [], 0.0, server.cpu_s(), time.process_time()
            alone.send(True)
            run_rate, cpu_s = alone.recv()
            rates.append((run_rate, read_stream(server, body, args.tokens)))
            run_s += cpu_s
        server_s, client_s = server.cpu_s() - server_s, time.process_time() - client_s
        alone.send(None)
    finally:
        server.close()
    overheads = sorted(1 - served / run for run, served in rates)
    ms = 1e3 / (args.rounds * args.tokens)
    return {
        "model": Path(args.model).name,
        "threads": args.threads,
        "cpus": os.cpu_count(),
        "rounds": args.rounds,
        "tokens": args.tokens,
        "run_tokens_per_s": median(run for run, _ in rates),
        "server_tokens_per_s": median(served for _, served in rates),
        "overhead": median(overheads),
        "overhead_quartiles": [overheads[len(overheads) // 4], overheads[3 * len(overheads) // 4]],
        "run_cpu_ms": ms * run_s,
        "server_cpu_ms": ms * server_s,
        "client_cpu_ms": ms * client_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
