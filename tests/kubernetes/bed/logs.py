"""The part of a kubelet that the API server asks for a pod's log."""

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class LogServer:
    """Answers `/containerLogs/{namespace}/{pod}/{container}` on a free port; `follow` is not served.

    Args:
        find: the log file of a pod, or None.
        certificate, key: what the server shows.
    """

    def __init__(self, find: Callable[[str, str], Path | None], certificate: Path, key: Path) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = urlsplit(self.path)
                parts = address.path.split("/")
                log = find(parts[2], parts[3]) if len(parts) == 5 and parts[1] == "containerLogs" else None
                text = None if log is None else _part(log.read_bytes(), parse_qs(address.query))
                self.send_response(404 if text is None else 200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(text or b"")

            def log_message(self, format: str, *arguments: object) -> None:
                """Tests read their own output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.port = self._server.server_port

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _part(log: bytes, query: dict[str, list[str]]) -> bytes:
    if "tailLines" in query:
        lines = int(query["tailLines"][0])
        log = b"".join(log.splitlines(keepends=True)[-lines:]) if lines else b""
    if "limitBytes" in query:
        log = log[: int(query["limitBytes"][0])]
    return log
