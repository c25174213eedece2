"""A server on this machine that answers as Hugging Face does, with files that a test puts there."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories by name, each a dictionary from file names to bytes, and what was asked for."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)
    """Tokens by repository."""
    gated: set[str] = field(default_factory=set)
    broken: int = 0
    """A status that every request gets, where it is not 0."""
    fetched: list[str] = field(default_factory=list)
    ranges: bool = True
    """Whether parts of files are sent."""
    sent: int = 0
    """Bytes of files."""
    elsewhere: str = ""
    """Where requests for files are pointed, if anywhere."""
    authorized: list[bool] = field(default_factory=list)
    """Of each request for a file, whether it came with a token."""
    url: str = ""

    def refusal(self, repo: str, token: str | None) -> tuple[int, dict[str, str]] | None:
        """Status and headers where `repo` may not be read."""
        if self.broken:
            return self.broken, {}
        if repo in self.gated:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}
        if repo not in self.repos or self.private.get(repo, token) != token:
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        return None


class Handler(BaseHTTPRequestHandler):
    """Answers requests from `server.hub`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub: Hub = self.server.hub
        parts = urlsplit(self.path).path.strip("/").split("/")
        is_listing = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if is_listing else parts[:2])
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        refusal = hub.refusal(repo, token)
        if refusal:
            self.send(refusal[0], b"{}", refusal[1])
        elif is_listing:
            files = [{"rfilename": name, "size": len(data)} for name, data in hub.repos[repo].items()]
            body = {"id": repo, "sha": COMMIT, "siblings": files, "private": False, "tags": [], "downloads": 0}
            self.send(200, json.dumps(body).encode(), {})
        else:
            self.send_file(hub, repo, "/".join(parts[4:]))

    def send_file(self, hub: Hub, repo: str, name: str) -> None:
        data = hub.repos[repo].get(name)
        if data is None:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            return
        hub.authorized.append("Authorization" in self.headers)
        if hub.elsewhere:
            self.send(302, b"", {"Location": f"{hub.elsewhere}{self.path}"})
            return
        hub.fetched += [name] if self.command == "GET" else []
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted and hub.ranges:
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            data = data[start:end]
        hub.sent += len(data)
        self.send(206 if wanted and hub.ranges else 200, data, headers)

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serving(hub: Hub):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = hub
    server.handle_error = lambda *_: None  # a client that reads no further is no error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
