"""A network that fails on purpose: an HTTP/1.1 proxy before a storage server that breaks requests by chance or by script."""

import json
import random
import re
import select
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.storage.gcs import emulator_environment

Fault = Literal["429", "500", "503", "timeout", "stall_upload", "cut_upload", "cut_download", "lost_response", "slow"]
"""What can go wrong with a request.

`429`, `500`, `503`: answered with that status, not forwarded; `429` asks for 30 s of patience.
`timeout`: read in full, not forwarded, never answered while the proxy is open.
`stall_upload`: the first part of the body is read, then nothing is read or answered while the proxy is open.
`cut_upload`: the first part of the body is read, then the connection is closed; nothing is forwarded.
`cut_download`: forwarded; headers and half of the answer's body are sent, then the connection is closed.
`lost_response`: forwarded; when the server has answered with success the connection is closed without a word.
`slow`: forwarded after `slow_seconds`.
"""

BLOCK_BYTES = 1 << 16
JSON_API = re.compile(r"/(storage|upload|download|batch|_internal)/")
HOP_BY_HOP = frozenset({"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"})


@dataclass(frozen=True)
class Request:
    """A request as a script sees it.

    Attributes:
        target: path and query as sent.
        bucket: empty if the request is about none.
        name: the object's name, also when it stands only in the body of an upload; empty for listings and buckets.
    """

    method: str
    target: str
    bucket: str
    name: str
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_upload(self) -> bool:
        """Whether it carries content of an object or opens an upload of one."""
        return self.method in ("POST", "PUT") and self.target.startswith("/upload/")

    @property
    def is_download(self) -> bool:
        return self.method == "GET" and (self.target.startswith("/download/") or self.query.get("alt") == "media")


@dataclass
class _Script:
    fault: Fault
    when: Callable[[Request], bool]
    times: int


class FaultyProxy:
    """Forwards to a server and injects faults; a context manager.

    By chance: each request is hit with the probability of `rates`. The draw depends on the seed, on what is asked and on how often it was
    asked before, but not on other requests, so a run with threads meets the same faults again as long as each thread asks the same.

    Args:
        upstream_url: the server.
        seed: of the draws.
        rates: probability by fault; they add up to at most 1.
        port: to listen on; a free one if 0.
        slow_seconds: delay of the fault `slow`.

    Attributes:
        counts: faults injected so far.
        requests: all requests so far, each with what was done to it.
    """

    def __init__(
        self, upstream_url: str, seed: int = 0, rates: Mapping[Fault, float] | None = None, *, port: int = 0, slow_seconds: float = 1.0
    ) -> None:
        self.upstream = urlsplit(upstream_url)
        self.seed = seed
        self.rates = dict(rates or {})
        self.slow_seconds = slow_seconds
        self.counts: Counter[Fault] = Counter()
        self.requests: list[tuple[Request, Fault | None]] = []
        self.closing = threading.Event()
        self._scripts: list[_Script] = []
        self._asked: Counter[tuple[str, str, str]] = Counter()
        self._enabled = True
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="faulty-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if self._server.failures and error is None:
            raise ExceptionGroup("the proxy itself failed", self._server.failures)

    def close(self) -> None:
        """Stop listening and cut all connections, also those that hang."""
        if not self.closing.is_set():
            self.closing.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def environment(self) -> dict[str, str]:
        """What a child process needs to reach the server through this proxy."""
        return emulator_environment(self.url)

    def next(self, fault: Fault, when: Callable[[Request], bool] | None = None, times: int = 1) -> None:
        """Hit the next requests that match, whatever the rates; scripts are tried in the order in which they were given."""
        with self._lock:
            self._scripts.append(_Script(fault, when or (lambda request: True), times))

    def off(self) -> None:
        """Let everything pass; scripts wait."""
        self._enabled = False

    def on(self) -> None:
        self._enabled = True

    def forget(self) -> None:
        """Drop all scripts, counts and requests."""
        with self._lock:
            self._scripts.clear()
            self.counts.clear()
            self.requests.clear()

    # Called by the handlers ---------------------------------------------------------------------------------------------

    def decide(self, request: Request) -> Fault | None:
        with self._lock:
            fault = self._decide(request) if self._enabled else None
            self.requests.append((request, fault))
            return fault

    def _decide(self, request: Request) -> Fault | None:
        for script in self._scripts:
            if script.when(request):
                script.times -= 1
                if not script.times:
                    self._scripts.remove(script)
                return script.fault
        what = (request.method, request.target.partition("?")[0], request.name)  # without the random id of an upload
        self._asked[what] += 1
        draw = random.Random(f"{self.seed} {what} {self._asked[what]}").random()
        for fault, rate in self.rates.items():
            if draw < rate:
                return fault
            draw -= rate
        return None

    def count(self, fault: Fault) -> None:
        with self._lock:
            self.counts[fault] += 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: FaultyProxy) -> None:
        self.proxy = proxy
        self.failures: list[Exception] = []
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self._open):
            with suppress(OSError):  # gone already
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, OSError | HTTPException):  # those are the client's or the server's end
            self.failures.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def relay(self) -> None:
        """One request; the connection stays open for the next unless a fault closes it."""
        proxy = cast(_Server, self.server).proxy
        body = _Body(self)
        start = body.read(BLOCK_BYTES)
        request = describe(self.command, self.path, start)
        fault = proxy.decide(request)
        match fault:
            case "429" | "500" | "503":
                proxy.count(fault)
                body.drain()
                self._refuse(int(fault))
            case "timeout" | "stall_upload":
                proxy.count(fault)
                if fault == "timeout":
                    body.drain()
                self._hang(proxy.closing)
            case "cut_upload":
                proxy.count(fault)
                self.close_connection = True
            case _:
                if fault == "slow":
                    proxy.count(fault)
                    proxy.closing.wait(proxy.slow_seconds)
                self._forward(proxy, start, body, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = relay  # noqa: N815

    def _forward(self, proxy: FaultyProxy, start: bytes, body: "_Body", fault: Fault | None) -> None:
        connection = HTTPConnection(proxy.upstream.hostname or "", proxy.upstream.port, timeout=120)
        try:
            self._send_upstream(connection, proxy.upstream.netloc, start, body)
            response = connection.getresponse()
            if fault == "lost_response" and response.status < 400:
                response.read()
                proxy.count(fault)
                self.close_connection = True
            else:
                self._answer(proxy, response, cut=fault == "cut_download")
        except (OSError, HTTPException):
            self.close_connection = True  # of the client or of the server: either way this exchange is over
        finally:
            connection.close()

    def _send_upstream(self, connection: HTTPConnection, upstream: str, start: bytes, body: "_Body") -> None:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in HOP_BY_HOP | {"host", "expect"}:
                connection.putheader(name, value)
        # The server repeats the client's Host in the address of a resumable upload, so that it goes on through this proxy;
        # but the XML protocol, `/bucket/object`, it serves under its own name only.
        connection.putheader("Host", self.headers.get("Host", upstream) if JSON_API.match(self.path) else upstream)
        connection.putheader("Connection", "close")
        if body.is_chunked:
            connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        for block in body.blocks(start):
            connection.send(b"%x\r\n%b\r\n" % (len(block), block) if body.is_chunked else block)
        if body.is_chunked:
            connection.send(b"0\r\n\r\n")

    def _answer(self, proxy: FaultyProxy, response: HTTPResponse, *, cut: bool) -> None:
        has_body = self.command != "HEAD" and response.status >= 200 and response.status not in (204, 304)
        length = response.length if has_body else None
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        chunked = has_body and length is None
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if not has_body or length == 0:
            return
        left = (length or BLOCK_BYTES) // 2 if cut else None
        while block := response.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
            if left is not None:
                left -= len(block)
                if left <= 0:
                    break
        if cut:
            proxy.count("cut_download")
            self.close_connection = True
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int) -> None:
        document = json.dumps({"error": {"code": status, "message": f"injected {status}"}}).encode()
        self.send_response_only(status)
        if status == 429:
            self.send_header("Retry-After", "30")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(document)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(document)

    def _hang(self, closing: threading.Event) -> None:
        """Do nothing until the client gives up or the proxy is closed."""
        self.close_connection = True
        while not closing.wait(0.05):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return


class _Body:
    """A request's body, whichever way its length is told."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._file = handler.rfile
        self.is_chunked = "chunked" in handler.headers.get("Transfer-Encoding", "").lower()
        self._left = -1 if self.is_chunked else int(handler.headers.get("Content-Length", 0))
        self._chunk = 0

    def read(self, limit: int) -> bytes:
        """At most so many bytes, as many as there are; empty at the end."""
        parts: list[bytes] = []
        size = 0
        while size < limit and (part := self._read(limit - size)):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def blocks(self, start: bytes) -> Iterator[bytes]:
        if start:
            yield start
        while block := self.read(BLOCK_BYTES):
            yield block

    def drain(self) -> None:
        while self.read(BLOCK_BYTES):
            pass

    def _read(self, limit: int) -> bytes:
        if not self.is_chunked:
            part = self._file.read(min(limit, self._left))
            self._left -= len(part)
            return self._whole(part, self._left == 0)
        if self._left == 0:
            return b""
        if self._chunk == 0:
            self._chunk = int(self._file.readline().split(b";")[0], 16)
            if self._chunk == 0:
                while self._file.readline().strip():
                    pass  # trailers
                self._left = 0
                return b""
        part = self._file.read(min(limit, self._chunk))
        self._chunk -= len(part)
        if self._chunk == 0:
            self._file.readline()
        return self._whole(part, False)

    @staticmethod
    def _whole(part: bytes, at_end: bool) -> bytes:
        if not part and not at_end:
            raise ConnectionResetError("the client has gone in the middle of its request")
        return part


def describe(method: str, target: str, body: bytes) -> Request:
    """What a request is about.

    >>> describe("GET", "/download/storage/v1/b/lab/o/a%2Fb.json?alt=media", b"").name
    'a/b.json'
    """
    address = urlsplit(target)
    query = dict(parse_qsl(address.query))
    found = re.search(r"/b/([^/]+)(?:/o(?:/([^/]+))?)?", address.path)
    bucket, name = (unquote(found[1]), unquote(found[2] or "")) if found else ("", "")
    if not JSON_API.match(address.path):
        bucket, _, name = unquote(address.path).lstrip("/").partition("/")
    if target.startswith("/upload/"):
        name = query.get("name") or _name_in(body)
    return Request(method, target, bucket, name, query)


def _name_in(body: bytes) -> str:
    """Name in the JSON part that a multipart upload begins with."""
    start = body.find(b"{")
    if start < 0:
        return ""
    try:
        document, _ = json.JSONDecoder().raw_decode(body[start:].decode(errors="replace"))
    except ValueError:
        return ""
    return str(document.get("name", ""))
