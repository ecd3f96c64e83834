"""The log-in in front of the web interface: who gets through, and what a foreign page can't make a logged-in browser do."""

import base64
import http.client
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.deploy.machine import FILES
from tests.integration.deployment import free_port, wait_for

pytestmark = pytest.mark.long  # fetches a package

NAME = "lab.example.org"
PASSWORD = "correct horse"  # noqa: S105
LOGIN = {"Authorization": "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode()}
SOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}


class Interface(BaseHTTPRequestHandler):
    """In place of Dagster's web interface: obeys everything, and remembers what it was asked."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, Mapping[str, str]]]

    def _answer(self) -> None:
        self.seen.append((self.command, self.path, dict(self.headers)))
        if self.headers.get("Upgrade") == "websocket":
            self.send_response(101)
            self.send_header("Connection", "Upgrade")
            self.send_header("Upgrade", "websocket")
            self.end_headers()
            self.wfile.write(self.rfile.read(4).upper())
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        return None


@dataclass(frozen=True)
class Proxy:
    port: int
    seen: list[tuple[str, str, Mapping[str, str]]]

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body=b"{}" if method == "POST" else None, headers={"Host": NAME, **headers})
        answer = connection.getresponse()
        if answer.status != 101:
            answer.read()
        return answer

    def status(self, method: str, path: str, headers: Mapping[str, str]) -> int:
        return self.ask(method, path, headers).status


@pytest.fixture(scope="module")
def caddy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Caddy, installed or unpacked from the distribution's package."""
    if found := shutil.which("caddy"):
        return found
    folder = tmp_path_factory.mktemp("caddy")
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        pytest.skip("no caddy here, and no Debian to get it from")
    if subprocess.run([apt, "download", "-q", "caddy"], cwd=folder, capture_output=True, check=False).returncode != 0:
        pytest.skip("no caddy here, and apt-get can't download it")
    subprocess.run([dpkg, "-x", str(next(folder.glob("caddy_*.deb"))), str(folder)], check=True)
    return str(folder / "usr" / "bin" / "caddy")


@pytest.fixture(scope="module")
def proxy(caddy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The Caddyfile as it is but for its port and its certificate, in front of an interface that obeys."""
    folder = tmp_path_factory.mktemp("proxy")
    handler = type("Remembering", (Interface,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = free_port()
    hashed = subprocess.run([caddy, "hash-password", "--plaintext", PASSWORD], capture_output=True, text=True, check=True).stdout.strip()
    (folder / "lab-people").write_text(f"ada {hashed}\n")
    text = (FILES / "Caddyfile").read_text()
    for real, here in {
        f"\n{NAME} {{": f"\nhttp://{NAME}:{port} {{",
        "/etc/caddy/lab-people": str(folder / "lab-people"),
        "127.0.0.1:3000": f"127.0.0.1:{server.server_port}",
    }.items():
        assert text.count(real) == 1, real
        text = text.replace(real, here)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [caddy, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"],
            env={"HOME": str(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for("Caddy's port", lambda: _listens(port) or process.poll() is not None, 60)
        assert process.poll() is None, (folder / "log").read_text()
        yield Proxy(port, handler.seen)  # type: ignore[attr-defined]
        assert PASSWORD not in (folder / "log").read_text()
        assert LOGIN["Authorization"] not in (folder / "log").read_text()
    finally:
        process.terminate()
        process.wait(timeout=30)
        server.shutdown()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("path", ["/", "/graphql", "/server_info", "/logs/a", "/report_asset_materialization/a"])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "login", [{}, {"Authorization": "Basic " + base64.b64encode(b"ada:wrong").decode()}, {"Authorization": "Bearer x"}]
)
def test_nobody_gets_in_without_a_password(proxy: Proxy, method: str, path: str, login: Mapping[str, str]) -> None:
    before = len(proxy.seen)
    assert proxy.status(method, path, login) == 401
    assert len(proxy.seen) == before


def test_who_logs_in_gets_the_interface_and_it_never_sees_the_password(proxy: Proxy) -> None:
    answer = proxy.ask("GET", "/runs", LOGIN)
    assert answer.status == 200
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "Strict-Transport-Security" in answer.headers
    assert proxy.status("POST", "/graphql", LOGIN) == 200  # a program, which has no origin
    assert proxy.status("POST", "/graphql", {**LOGIN, "Origin": f"https://{NAME}"}) == 200
    for _, _, headers in proxy.seen:
        assert "Authorization" not in headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"https://{NAME}.evil.example", f"http://{NAME}", f"https://{NAME}:444"]
)
@pytest.mark.parametrize("path", ["/graphql", "/report_asset_materialization/a"])
def test_a_foreign_page_can_send_nothing_with_the_password_of_a_browser(proxy: Proxy, path: str, origin: str) -> None:
    before = len(proxy.seen)
    assert proxy.status("POST", path, {**LOGIN, "Origin": origin}) == 403
    assert proxy.status("GET", "/graphql", {**LOGIN, **SOCKET, "Origin": origin}) == 403
    assert len(proxy.seen) == before


def test_a_link_or_an_image_can_not_launch_a_run(proxy: Proxy) -> None:
    before = len(proxy.seen)
    for path in ("/graphql?query=mutation", "/graphql/?query=mutation", "//graphql?query=mutation", "/%67raphql?query=mutation"):
        assert proxy.status("GET", path, LOGIN) == 405, path
    assert len(proxy.seen) == before


def test_the_interfaces_own_socket_goes_through_both_ways(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as connection:
        headers = {"Host": NAME, **LOGIN, **SOCKET, "Origin": f"https://{NAME}"}
        lines = ["GET /graphql HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        connection.sendall("\r\n".join(lines).encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(4096)
        assert received.startswith(b"HTTP/1.1 101")
        connection.sendall(b"ping")
        body = received.partition(b"\r\n\r\n")[2]
        while len(body) < 4:
            body += connection.recv(4096)
        assert body == b"PING"


def test_the_name_stands_where_the_readme_changes_it() -> None:
    text = Path(FILES / "Caddyfile").read_text()
    assert text.count(f"\n{NAME} {{") == 1
    assert text.count(f"https://{NAME}") == 1
