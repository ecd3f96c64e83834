"""A way to the API server that fails on purpose: a proxy on 127.0.0.1 between a launcher and the real one."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import urllib3

Fault = Literal["409", "410", "429", "500", "lost answer", "cut watch"]
"""What can go wrong with a request.

`409`: a creation is told that the object is there, which it may not be.
`410`: a watch is told that its version is too old.
`429`, `500`: not forwarded; `429` asks for a second of patience.
`lost answer`: forwarded, and the connection is closed without a word.
`cut watch`: the connection is closed in the middle of the stream.
"""

ANSWERS: dict[str, tuple[int, str, str]] = {
    "409": (409, "AlreadyExists", "already exists"),
    "410": (410, "Expired", "too old resource version"),
    "429": (429, "TooManyRequests", "too many requests, please try again later"),
    "500": (500, "InternalError", "etcdserver: leader changed"),
}


class FaultyApi:
    """The proxy.

    Attributes:
        hits: how often each fault has hit a request.

    Args:
        url: of the API server.
        authority: certificate of the authority that signed the server's.
    """

    def __init__(self, url: str, authority: Path) -> None:
        self.hits: Counter[Fault] = Counter()
        self._upstream = url
        self._pool = urllib3.PoolManager(ca_certs=str(authority), maxsize=64, retries=False, timeout=urllib3.Timeout(connect=5, read=360))
        self._due: list[Fault] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            api = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator["FaultyApi"]:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="faulty API").start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def next(self, fault: Fault) -> None:
        """Let a fault hit the next request that it can happen to."""
        with self._lock:
            self._due.append(fault)

    def fault(self, method: str, *, watches: bool) -> Fault | None:
        """What happens to a request; each fault once."""
        possible: set[Fault] = {"410", "cut watch"} if watches else {"429", "500", "lost answer"}
        if method == "POST":
            possible.add("409")
        with self._lock:
            found = next((fault for fault in self._due if fault in possible), None)
            if found is not None:
                self._due.remove(found)
                self.hits[found] += 1
            return found

    def forward(self, method: str, target: str, body: bytes | None, headers: dict[str, str]) -> Any:
        return self._pool.request(method, self._upstream + target, body=body, headers=headers, preload_content=False)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A launcher that was killed doesn't listen any more."""


class _Handler(BaseHTTPRequestHandler):
    api: FaultyApi

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def _serve(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        fault = self.api.fault(method, watches=parse_qs(urlsplit(self.path).query).get("watch") == ["true"])
        if fault in ANSWERS:
            code, reason, message = ANSWERS[fault]
            answer = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
            self._begin(code, {"Content-Type": "application/json", **({"Retry-After": "1"} if fault == "429" else {})})
            self.wfile.write(json.dumps(answer).encode())
            return
        headers = {name: self.headers[name] for name in ("Authorization", "Accept", "Content-Type") if name in self.headers}
        with suppress(urllib3.exceptions.HTTPError):  # an API server that is away: the connection is closed
            answered = self.api.forward(method, self.path, body, headers)
            try:
                self._pass_on(answered, fault)
            finally:
                answered.close()

    def _pass_on(self, answered: Any, fault: Fault | None) -> None:
        if fault == "lost answer":
            answered.read()
            return
        self._begin(answered.status, {"Content-Type": answered.headers.get("Content-Type", "application/json")})
        while part := answered.read1(65536):
            if fault == "cut watch":
                self.wfile.write(part[: len(part) // 2])
                return
            self.wfile.write(part)
            self.wfile.flush()

    def _begin(self, code: int, headers: dict[str, str]) -> None:
        """HTTP 1.0: the answer ends with the connection."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
