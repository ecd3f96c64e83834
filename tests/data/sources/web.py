"""A web server on this machine that serves files as a good one does, and fails as a bad one does, by a script."""

import hashlib
import re
import socket
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        return urlsplit(self.target).path


@dataclass
class WebServer:
    """Files by path, on a free port of 127.0.0.1; a context manager.

    It knows ranges, `If-Range` and ETags. What stands in `script` for a path is done to its next requests, one each.

    Attributes:
        files: path → bytes.
        script: path → behaviours, each for one request.
        routes: what answers a path before `files` does, where it says so by True.
        requests: all that came, in order.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    script: dict[str, list["Behaviour"]] = field(default_factory=lambda: defaultdict(list))
    routes: list["Route"] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.web = self  # type: ignore[attr-defined]
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, path: str) -> list[Request]:
        """The requests of a path."""
        return [request for request in self.requests if request.path == path]


def etag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is what many tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    @property
    def web(self) -> WebServer:
        return cast(WebServer, self.server.web)  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        request = Request(self.path, dict(self.headers.items()))
        self.web.requests.append(request)
        behaviours = self.web.script.get(request.path)
        with suppress(ConnectionError):
            if behaviours:
                behaviours.pop(0)(self)
            elif not any(route(self, request) for route in self.web.routes):
                self.serve(self.web.files.get(request.path))

    do_HEAD = do_GET  # noqa: N815

    def serve(self, data: bytes | None, *, ranges: bool = True, etag: str | None = None, cut: int | None = None) -> None:
        """Answer with a file or a part of it; `cut` = close the connection after so many bytes of the body."""
        if data is None:
            return self.answer(404, b"no such file")
        etag = etag_of(data) if etag is None else etag
        headers = {"ETag": etag} if etag else {}
        if etag and self.headers.get("If-None-Match") == etag:
            return self.answer(304, b"", {"ETag": etag})
        body, status = data, 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and ranges and self.headers.get("If-Range", etag) == etag:
            start = int(asked[1])
            if start >= len(data):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            body, status = data[start:], 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.answer(status, body, headers, cut=cut)
        return None

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, *, cut: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Break the connection without an answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


Handler = _Handler
Behaviour = Callable[[_Handler], None]
Route = Callable[[_Handler, Request], bool]


def status(code: int, **headers: str) -> Behaviour:
    return lambda handler: handler.answer(code, b"<html>sorry</html>", {name.replace("_", "-"): value for name, value in headers.items()})


def redirect(location: str, code: int = 302) -> Behaviour:
    return lambda handler: handler.answer(code, b"", {"Location": location})


def cut(after: int) -> Behaviour:
    """Answer as asked, but close the connection after so many bytes of the body."""
    return lambda handler: handler.serve(handler.web.files[handler.path.partition("?")[0]], cut=after)


def swap(data: bytes, then: Behaviour | None = None) -> Behaviour:
    """Put other bytes there before answering."""

    def behave(handler: _Handler) -> None:
        path = handler.path.partition("?")[0]
        handler.web.files[path] = data
        if then is None:
            handler.serve(data)
        else:
            then(handler)

    return behave


def reset(handler: _Handler) -> None:
    handler.reset()
