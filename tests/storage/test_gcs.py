"""The storage test bed, and what gcsfs 2026.10.1 does when the network fails: the facts that marin's store is built on.

An upgrade of gcsfs, fsspec or aiohttp that changes one of them fails here first. In most tests gcsfs's pauses between tries are recorded
instead of slept; `test_the_pauses_are_real` (slow) sleeps them.
"""

import asyncio
import hashlib
import http.client
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import fsspec
import gcsfs.retry
import pytest
import requests
from fsspec.exceptions import FSTimeoutError
from gcsfs.core import GCSFileSystem  # not gcsfs.GCSFileSystem: which class that is depends on the environment at import
from gcsfs.retry import ChecksumError, HttpError

from tests.storage.faults import Fault, FaultyProxy, Request
from tests.storage.gcs import FakeGcs, ask, free_port

TRIES = 6
"""Of each request, by gcsfs; there is no option for it."""
PATIENCE = aiohttp.ClientTimeout(sock_connect=2, sock_read=10)
IMPATIENCE = aiohttp.ClientTimeout(sock_connect=2, sock_read=0.25)
ALWAYS = 10**9


def gcs(url: str, **options: Any) -> Any:
    """gcsfs with the options that marin's store gives it, except time-outs."""
    return GCSFileSystem(token="anon", endpoint_url=url, **{"use_listings_cache": False, "skip_instance_cache": True, **options})  # noqa: S106


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture
def proxy(server: FakeGcs) -> Iterator[FaultyProxy]:
    """One for each test: what gcsfs left running in the background of another meets a closed port."""
    with FaultyProxy(server.url, slow_seconds=0.4) as proxy:
        yield proxy


@pytest.fixture
def fs(proxy: FaultyProxy) -> Any:
    return gcs(proxy.url, requests_timeout=PATIENCE)


@pytest.fixture
def direct(server: FakeGcs) -> Any:
    """A look behind the proxy."""
    return gcs(server.url, requests_timeout=PATIENCE)


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    """A place of each test's own in the bucket."""
    return f"lab/{hashlib.md5(request.node.nodeid.encode(), usedforsecurity=False).hexdigest()}"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that gcsfs would have made between tries, in seconds."""
    wanted: list[float] = []

    async def note(seconds: float) -> None:
        wanted.append(seconds)

    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=note))
    return wanted


# The test bed -----------------------------------------------------------------------------------------------------------


def test_a_server_lives_as_long_as_its_context() -> None:
    with FakeGcs(bucket="first") as one, FakeGcs(bucket="second") as two:
        assert ask(one.url, "GET", "/storage/v1/b/first")[0] == 200
        assert ask(two.url, "GET", "/storage/v1/b/first")[0] == 404
        assert one.prefix("first/lab") == "gs://first/lab"
    for server in (one, two):
        assert not server.folder.exists()
        with pytest.raises(OSError, match="refused"):
            ask(server.url, "GET", "/storage/v1/b")


@pytest.mark.parametrize(("backend", "survives"), [("memory", False), ("filesystem", True)])
def test_only_files_outlive_a_restart(tmp_path: Path, backend: Literal["memory", "filesystem"], survives: bool) -> None:
    with FakeGcs(backend=backend, folder=tmp_path) as server:
        fs = gcs(server.url)
        fs.pipe_file("lab/a/b", b"1")
        url = server.url
        server.stop()
        server.start()
        assert server.url == url
        assert fs.exists("lab/a/b") == survives
    assert (tmp_path / "server.log").exists()


def test_a_child_process_needs_only_the_environment(proxy: FaultyProxy, folder: str) -> None:
    """It also shows that a file system made before a fork can't be used after it, but a new one, from the same call, can."""
    script = f"""
import os, fsspec
def store(): return fsspec.core.url_to_fs("gs://{folder}", use_listings_cache=False)[0]
fs = store()
fs.pipe_file("{folder}/x", b"1")
if os.fork() == 0:
    try:
        fs.cat_file("{folder}/x")
    except RuntimeError as error:
        print(error, flush=True)
    print(store().cat_file("{folder}/x"), flush=True)
    os._exit(0)
print(os.wait()[1], type(fs).__module__, fs.cat_file("{folder}/x"))
"""
    environment = {**os.environ, **proxy.environment()}
    child = subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert child.stdout.splitlines() == ["This class is not fork-safe", "b'1'", "0 gcsfs.core b'1'"], child.stderr
    assert [request.method for request, _ in proxy.requests] == ["POST", "GET", "GET"]


class Upstream(BaseHTTPRequestHandler):
    """Answers with the status that the path ends in and says what it got."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self) -> None:
        digest, size = hashlib.sha256(), 0
        for block in self._body():
            digest.update(block)
            size += len(block)
        status = int(self.path.partition("?")[0].rpartition("-")[2])
        document = json.dumps({"error": {"message": self.headers.get("X-Message", "")}, "size": size, "sha": digest.hexdigest()}).encode()
        self.send_response_only(status)
        if "chunked" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for byte in document:
                self.wfile.write(b"1\r\n%c\r\n" % byte)
            self.wfile.write(b"0\r\n\r\n")
        elif status in (204, 304):
            self.end_headers()
        else:
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(document)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

    def _body(self) -> Iterator[bytes]:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        elif length := int(self.headers.get("Content-Length", 0)):
            yield self.rfile.read(length)


@contextmanager
def upstream() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as answering:
        threading.Thread(target=answering.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{answering.server_address[1]}"
        answering.shutdown()


def test_the_proxy_passes_every_kind_of_message_on_one_connection() -> None:
    big = os.urandom(1 << 20) * 24
    with upstream() as url, FaultyProxy(url) as proxy:
        connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=120)
        connection.connect()
        sock = connection.sock

        def exchange(method: str, path: str, body: Any = None, **options: Any) -> tuple[int, bytes, http.client.HTTPResponse]:
            connection.request(method, path, body, **options)
            response = connection.getresponse()
            return response.status, response.read(), response

        assert exchange("GET", "/storage/v1/status-204")[:2] == (204, b"")
        assert exchange("GET", "/storage/v1/status-304")[:2] == (304, b"")
        status, content, head = exchange("HEAD", "/storage/v1/status-200")
        assert (status, content) == (200, b"")
        assert int(head.headers["Content-Length"]) > 0
        assert json.loads(exchange("GET", "/storage/v1/chunked-200")[1])["size"] == 0
        assert json.loads(exchange("POST", "/upload/status-200", big)[1])["sha"] == hashlib.sha256(big).hexdigest()
        parts = [big[:1], big[1:100_000], big[100_000:]]
        got = json.loads(exchange("POST", "/upload/chunked-200", iter(parts), encode_chunked=True)[1])
        assert got["sha"] == hashlib.sha256(big).hexdigest()
        assert exchange("DELETE", "/storage/v1/status-404")[0] == 404
        assert connection.sock is sock
        connection.close()


def test_a_script_hits_the_request_that_it_describes(proxy: FaultyProxy, fs: Any, folder: str, tmp_path: Path, pauses: list[float]) -> None:
    """The name of an object stands in the address of a read, in the body of a small upload, in the query of a large one."""
    (tmp_path / "large").write_bytes(b"1" * (6 << 20))
    proxy.next("503", when=lambda request: request.is_upload and request.name.endswith("record.json"))
    proxy.next("503", when=lambda request: request.is_download and request.name.endswith("record.json"))
    proxy.next("503", when=lambda request: "upload_id" in request.query and request.name.endswith("large"))
    fs.pipe_file(f"{folder}/other.json", b"{}")
    fs.pipe_file(f"{folder}/record.json", b"{}")
    fs.cat_file(f"{folder}/other.json")
    fs.cat_file(f"{folder}/record.json")
    fs.put_file(str(tmp_path / "large"), f"{folder}/large")
    hit = [(request.method, request.bucket, request.name.rpartition("/")[2]) for request, fault in proxy.requests if fault]
    assert hit == [("POST", "lab", "record.json"), ("GET", "lab", "record.json"), ("POST", "lab", "large")]
    assert proxy.counts == {"503": 3}


def test_chance_does_not_depend_on_the_order_of_threads(server: FakeGcs) -> None:
    rates: dict[Fault, float] = {"429": 0.1, "500": 0.1, "503": 0.1}

    def meet(seed: int) -> list[tuple[str, str]]:
        with FaultyProxy(server.url, seed, rates) as proxy:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda i: ask(proxy.url, "GET", f"/storage/v1/b/lab/o/{i % 40}"), range(120)))
            assert sum(proxy.counts.values()) == sum(fault is not None for _, fault in proxy.requests)
            return sorted((request.name, fault or "none") for request, fault in proxy.requests)

    first = meet(1)
    assert meet(1) == first
    assert meet(2) != first
    assert 15 < sum(fault != "none" for _, fault in first) < 60


def test_faults_can_be_switched_off_and_on(proxy: FaultyProxy) -> None:
    proxy.rates["503"] = 1.0
    proxy.off()
    assert ask(proxy.url, "GET", "/storage/v1/b")[0] == 200
    proxy.on()
    assert ask(proxy.url, "GET", "/storage/v1/b")[0] == 503


def test_closing_the_proxy_ends_what_hangs(server: FakeGcs) -> None:
    with FaultyProxy(server.url) as proxy:
        proxy.next("timeout")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, proxy.url, "GET", "/storage/v1/b")
            while not proxy.counts:
                time.sleep(0.01)
            assert not asked.done()
            proxy.close()
            with pytest.raises((OSError, http.client.HTTPException)):
                asked.result(timeout=120)


# Deciding writes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["memory", "filesystem"])
def test_a_create_has_one_winner_among_sixteen_threads(backend: Literal["memory", "filesystem"], tmp_path: Path) -> None:
    with FakeGcs(backend=backend, folder=tmp_path) as server, FaultyProxy(server.url) as proxy:
        fs = gcs(proxy.url, requests_timeout=PATIENCE)

        def create(path: str, writer: int) -> int | None:
            try:
                fs.pipe_file(path, b"%d" % writer, mode="create")
            except FileExistsError:
                return None
            return writer

        for turn in range(5):
            path = f"lab/race/{turn}"
            with ThreadPoolExecutor(16) as pool:
                winners = [winner for winner in pool.map(lambda writer: create(path, writer), range(16)) if winner is not None]  # noqa: B023
            assert len(winners) == 1
            assert fs.cat_file(path) == b"%d" % winners[0]


@pytest.mark.parametrize("fault", ["lost_response", "cut_download"])
def test_a_create_whose_answer_is_lost_says_that_the_file_exists(
    fault: Fault, proxy: FaultyProxy, fs: Any, folder: str, pauses: list[float]
) -> None:
    """The second try meets what the first has written: only reading back tells whose it is."""
    proxy.next(fault)
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{folder}/x", b"mine", mode="create")
    assert fs.cat_file(f"{folder}/x") == b"mine"
    assert len(pauses) == 1


@pytest.mark.parametrize("fault", ["lost_response", "cut_download"])
def test_a_delete_whose_answer_is_lost_says_that_nothing_is_there(
    fault: Fault, proxy: FaultyProxy, fs: Any, direct: Any, folder: str, pauses: list[float]
) -> None:
    direct.pipe_file(f"{folder}/x", b"1")
    proxy.next(fault)
    with pytest.raises(FileNotFoundError):
        fs.rm_file(f"{folder}/x")
    assert not direct.exists(f"{folder}/x")


def swap(fs: Any, path: str, data: bytes, generation: str, **options: Any) -> str:
    """Overwrite the one generation of an object (`0`: none) and return the new one; `FileExistsError` if it is another by now."""
    bucket, name, _ = fs.split_path(path)
    boundary = hashlib.sha256(data).hexdigest()
    head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps({'name': name})}\r\n--{boundary}\r\n"
    body = head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + data + f"\r\n--{boundary}--".encode()
    _, answer = fs.call(
        "POST",
        f"{fs._location}/upload/storage/v1/b/{bucket}/o",
        uploadType="multipart",
        ifGenerationMatch=generation,
        headers={"Content-Type": f'multipart/related; boundary="{boundary}"'},
        data=body,
        **options,
    )
    return str(json.loads(answer)["generation"])


def test_an_overwrite_can_be_conditional_but_not_by_pipe_file(fs: Any, folder: str) -> None:
    path = f"{folder}/counter"
    for option in ("if_generation_match", "ifGenerationMatch"):
        with pytest.raises(TypeError, match=option):
            fs.pipe_file(path, b"0", **{option: 0})
    first = swap(fs, path, b"0", "0", timeout=10)
    assert fs.info(path)["generation"] == first
    with pytest.raises(FileExistsError):
        swap(fs, path, b"5", str(int(first) - 1))
    with pytest.raises(FileExistsError):
        swap(fs, f"{folder}/absent", b"5", first)

    def count(times: int) -> None:
        while times:
            info = fs.info(path)
            try:
                swap(fs, path, b"%d" % (int(fs.cat_file(path)) + 1), info["generation"])
            except FileExistsError:
                continue
            times -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, [5] * 4))
    assert fs.cat_file(path) == b"20"


def test_an_overwrite_that_timed_out_can_undo_a_later_one(proxy: FaultyProxy, direct: Any, folder: str, pauses: list[float]) -> None:
    """The first try is under way while the second succeeds; what must not go back in time needs a condition or one name for each state."""
    proxy.slow_seconds = 1.5
    proxy.next("slow")
    fs = gcs(proxy.url, requests_timeout=IMPATIENCE)
    fs.pipe_file(f"{folder}/state", b"first")
    fs.pipe_file(f"{folder}/state", b"second")
    assert direct.cat_file(f"{folder}/state") == b"second"
    time.sleep(1.6)
    assert direct.cat_file(f"{folder}/state") == b"first"


def test_the_fake_checks_no_condition_on_large_uploads(fs: Any, folder: str, tmp_path: Path) -> None:
    """A create of 5 MiB and more by `put_file`, of 50 MiB by `pipe_file`, is untested here: create-only is for small documents."""
    (tmp_path / "large").write_bytes(b"1" * (5 << 20))
    fs.put_file(str(tmp_path / "large"), f"{folder}/x", mode="create")
    fs.put_file(str(tmp_path / "large"), f"{folder}/x", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{folder}/x", b"small", mode="create")


# Faults that pass -------------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Any, str], object]] = {
    "read": lambda fs, folder: fs.cat_file(f"{folder}/x"),
    "write": lambda fs, folder: fs.pipe_file(f"{folder}/y", b"2" * 200_000),
    "list": lambda fs, folder: fs.ls(folder, detail=False),
    "delete": lambda fs, folder: fs.rm_file(f"{folder}/x"),
}


QUICK: list[Fault] = ["429", "500", "503", "cut_upload", "cut_download", "lost_response"]
LASTING: list[Fault] = ["timeout", "stall_upload", "slow"]


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        (operation, fault)
        for operation in OPERATIONS
        for fault in QUICK
        if operation != "delete" or fault not in ("cut_download", "lost_response")
    ]
    + [(operation, fault) for operation in ("read", "write") for fault in LASTING],
)
def test_one_fault_is_invisible(operation: str, fault: Fault, proxy: FaultyProxy, direct: Any, folder: str, pauses: list[float]) -> None:
    """Pauses are gcsfs's own: `Retry-After`, 30 s here, is ignored.

    A read or a delete on a connection that the server closes is repeated by aiohttp, at once and not counted as a try.
    """
    direct.pipe_file(f"{folder}/x", b"1")
    fs = gcs(proxy.url, requests_timeout=aiohttp.ClientTimeout(sock_read=0.5) if fault in ("timeout", "stall_upload") else PATIENCE)
    fs.cat_file(f"{folder}/x")  # a connection is open
    proxy.next(fault)
    done = OPERATIONS[operation](fs, folder)
    if operation == "read":
        assert done == b"1"
    if operation == "write":
        assert direct.cat_file(f"{folder}/y") == b"2" * 200_000
    assert proxy.counts == {fault: 1}
    assert len(pauses) <= 1
    assert all(1 <= pause <= 2 for pause in pauses)


# Faults that stay -------------------------------------------------------------------------------------------------------

ERRORS: dict[Fault, tuple[type[Exception], bool]] = {
    "429": (HttpError, False),
    "500": (HttpError, False),
    "503": (HttpError, False),
    "timeout": (FSTimeoutError, True),
    "cut_upload": (aiohttp.ServerDisconnectedError, False),
    "cut_download": (aiohttp.ClientPayloadError, False),
}
"""What a call raises when each try fails so, and whether it is an OSError: catching that alone isn't enough."""


@pytest.mark.parametrize("fault", ERRORS)
def test_a_fault_that_stays_is_an_error_after_six_tries(fault: Fault, proxy: FaultyProxy, folder: str, pauses: list[float]) -> None:
    kind, is_os_error = ERRORS[fault]
    fs = gcs(proxy.url, requests_timeout=aiohttp.ClientTimeout(sock_read=0.1) if fault == "timeout" else PATIENCE)
    proxy.next(fault, times=ALWAYS)
    with pytest.raises(kind) as caught:
        fs.pipe_file(f"{folder}/x", b"1")
    assert isinstance(caught.value, OSError) == is_os_error
    assert len(proxy.requests) == TRIES
    assert [int(pause) for pause in pauses] == [1, 2, 4, 8, 16]  # each plus up to one second by chance: 31 to 36 s in all


def test_a_server_that_is_gone_is_an_error_after_six_tries(pauses: list[float]) -> None:
    with pytest.raises(aiohttp.ClientConnectorError) as caught:
        gcs(f"http://127.0.0.1:{free_port()}").cat_file("lab/x")
    assert isinstance(caught.value, OSError)
    assert len(pauses) == TRIES - 1


@pytest.mark.parametrize(
    ("status", "message", "kind", "tries"),
    [
        (400, "invalid argument", ValueError, 1),
        (401, "login required", HttpError, 1),
        (401, "Invalid Credentials", HttpError, TRIES),
        (403, "no access", OSError, 1),
        (404, "no such object", FileNotFoundError, 1),
        (408, "slow", HttpError, TRIES),
        (412, "generation", FileExistsError, 1),
        (502, "gateway", requests.exceptions.ProxyError, TRIES),
        (504, "gateway", HttpError, TRIES),
    ],
)
def test_each_refusal_has_its_error(status: int, message: str, kind: type[Exception], tries: int, pauses: list[float]) -> None:
    """No right to read is a plain OSError that begins with `Forbidden`, not a PermissionError."""
    with upstream() as url, FaultyProxy(url) as proxy:
        fs = gcs(proxy.url)
        with pytest.raises(kind) as caught:
            fs.call("GET", f"{proxy.url}/storage/v1/b/lab/o/x-{status}", headers={"X-Message": message})
        assert type(caught.value) is kind
        assert len(proxy.requests) == tries
    if status == 403:
        assert str(caught.value).startswith("Forbidden")
    if status == 401:
        assert caught.value.code == 401  # type: ignore[attr-defined]


def test_a_missing_bucket_looks_like_a_missing_object(fs: Any, tmp_path: Path) -> None:
    """For writes too, which therefore must not pass FileNotFoundError on."""
    (tmp_path / "x").write_bytes(b"1")
    calls: list[Callable[[], object]] = [
        lambda: fs.cat_file("nowhere/x"),
        lambda: fs.ls("nowhere/x"),
        lambda: fs.find("nowhere/x"),
        lambda: fs.rm_file("nowhere/x"),
        lambda: fs.pipe_file("nowhere/x", b"1"),
        lambda: fs.pipe_file("nowhere/x", b"1", mode="create"),
        lambda: fs.put_file(str(tmp_path / "x"), "nowhere/x"),
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call()
    fs.makedirs("nowhere/x", exist_ok=True)  # does nothing at all


def test_questions_swallow_errors(proxy: FaultyProxy, fs: Any, direct: Any, folder: str, pauses: list[float]) -> None:
    """`exists` raises, but `isfile` takes any failure for a no, and `isdir` takes an OSError, such as a time-out, for one."""
    direct.pipe_file(f"{folder}/d/x", b"1")
    proxy.next("503", times=ALWAYS)
    with pytest.raises(HttpError):
        fs.exists(f"{folder}/d/x")
    assert not fs.isfile(f"{folder}/d/x")
    proxy.forget()
    proxy.next("timeout", times=ALWAYS)
    assert not gcs(proxy.url, requests_timeout=aiohttp.ClientTimeout(sock_read=0.05)).isdir(f"{folder}/d")


@pytest.mark.slow
def test_the_pauses_are_real(proxy: FaultyProxy, folder: str) -> None:
    """A server that hangs is given up after 6 x `sock_read` + 31 to 36 s."""
    proxy.next("timeout", times=ALWAYS)
    started = time.monotonic()
    with pytest.raises(FSTimeoutError):
        gcs(proxy.url, requests_timeout=aiohttp.ClientTimeout(sock_connect=5, sock_read=2)).pipe_file(f"{folder}/x", b"1")
    assert time.monotonic() - started >= 12 + 31
    assert len(proxy.requests) == 6


# Time -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"timeout": 0.1}, {"session_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.1)}}], ids=["none", "timeout", "session"]
)
def test_by_default_a_silent_server_is_waited_for_for_ever(options: dict[str, Any], proxy: FaultyProxy) -> None:
    """Each request overrides the session's five minutes with `requests_timeout`, whose None means no limit; `timeout` is for `buckets`."""
    proxy.next("timeout")
    with pytest.raises(FSTimeoutError):
        gcs(proxy.url, **options).cat_file("lab/x", timeout=0.4)  # this is what ended it, not an option
    assert len(proxy.requests) == 1


def test_a_limit_in_seconds_ends_the_request_and_the_call(proxy: FaultyProxy, pauses: list[float]) -> None:
    """A number is a limit on a whole request, its body and the wait for a connection included; hitting it isn't tried again."""
    proxy.next("timeout", times=ALWAYS)
    with pytest.raises(FSTimeoutError):
        gcs(proxy.url, requests_timeout=0.2).cat_file("lab/x")
    assert len(proxy.requests) == 1
    assert pauses == []


def test_a_limit_on_silence_lets_a_long_answer_through(proxy: FaultyProxy, direct: Any, folder: str) -> None:
    direct.pipe_file(f"{folder}/x", b"1" * (4 << 20))
    proxy.slow_seconds = 0.5
    proxy.rates["slow"] = 1.0
    fs = gcs(proxy.url, requests_timeout=aiohttp.ClientTimeout(sock_read=1.4))
    started = time.monotonic()
    for _ in range(3):
        assert len(fs.cat_file(f"{folder}/x")) == 4 << 20
    assert time.monotonic() - started > 1.4


LIMITED: dict[str, Callable[[Any, str, Path], object]] = {
    "cat_file": lambda fs, at, local: fs.cat_file(f"{at}/x", timeout=0.2),
    "cat": lambda fs, at, local: fs.cat([f"{at}/x", f"{at}/y"], on_error="return", timeout=0.2),
    "pipe_file": lambda fs, at, local: fs.pipe_file(f"{at}/x", b"1", mode="create", timeout=0.2),
    "ls": lambda fs, at, local: fs.ls(at, timeout=0.2),
    "find": lambda fs, at, local: fs.find(at, detail=True, timeout=0.2),
    "info": lambda fs, at, local: fs.info(f"{at}/x", timeout=0.2),
    "exists": lambda fs, at, local: fs.exists(f"{at}/x", timeout=0.2),
    "rm_file": lambda fs, at, local: fs.rm_file(f"{at}/x", timeout=0.2),
    "put_file": lambda fs, at, local: fs.put_file(str(local), f"{at}/x", timeout=0.2),
    "get_file": lambda fs, at, local: fs.get_file(f"{at}/x", str(local), timeout=0.2),
    "call": lambda fs, at, local: fs.call("GET", "b/lab/o", timeout=0.2),
}


@pytest.mark.parametrize("operation", LIMITED)
def test_every_call_takes_a_limit_on_all_its_tries(operation: str, proxy: FaultyProxy, folder: str, tmp_path: Path) -> None:
    """`timeout=` of fsspec's own: the only one that ends pauses, retries of retries, uploads that nobody reads."""
    (tmp_path / "x").write_bytes(b"1")
    proxy.next("503")
    proxy.next("timeout", times=ALWAYS)
    with pytest.raises(FSTimeoutError) as caught:
        LIMITED[operation](gcs(proxy.url, requests_timeout=PATIENCE), folder, tmp_path / "x")
    assert isinstance(caught.value, TimeoutError)
    assert len(proxy.requests) <= 4  # two at once and one more try of each, instead of six


def test_a_batch_goes_on_after_its_limit(proxy: FaultyProxy, fs: Any, direct: Any, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cat`, `pipe` and `rm` of many don't cancel what they have begun: a delete can still happen after the call has failed."""

    async def pause(seconds: float) -> None:
        await asyncio.sleep(0.6)

    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=pause))
    direct.pipe({f"{folder}/x": b"1", f"{folder}/y": b"1"})
    proxy.next("503", times=2)
    with pytest.raises(FSTimeoutError):
        fs.rm([f"{folder}/x"], timeout=0.2)
    with pytest.raises(FSTimeoutError):
        fs.rm_file(f"{folder}/y", timeout=0.2)
    time.sleep(0.8)
    assert direct.find(folder) == [f"{folder}/y"]


def test_an_upload_that_nobody_reads_ends_only_by_the_call_s_limit(proxy: FaultyProxy, folder: str, tmp_path: Path) -> None:
    """The clock of `sock_read` starts when the body is sent."""
    (tmp_path / "large").write_bytes(b"1" * (24 << 20))
    proxy.next("stall_upload", when=lambda request: "upload_id" in request.query)
    started = time.monotonic()
    with pytest.raises(FSTimeoutError):
        gcs(proxy.url, requests_timeout=IMPATIENCE).put_file(str(tmp_path / "large"), f"{folder}/x", timeout=1.2)
    assert time.monotonic() - started > 1.1
    assert len(proxy.requests) == 2


# Files ------------------------------------------------------------------------------------------------------------------

PART = 1 << 20


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Three parts and a bit."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(3 * PART) * 2)
    return path


def nth_part(number: int) -> Callable[[Request], bool]:
    seen: list[Request] = []

    def matches(request: Request) -> bool:
        if "upload_id" in request.query and request.method != "DELETE":
            seen.append(request)
        return bool(seen) and seen[-1] is request and len(seen) == number

    return matches


@pytest.mark.parametrize(("fault", "part"), [("cut_upload", 1), ("cut_upload", 6), ("503", 2)])
def test_a_part_that_did_not_arrive_is_sent_again(
    fault: Fault, part: int, proxy: FaultyProxy, fs: Any, direct: Any, folder: str, large: Path, pauses: list[float]
) -> None:
    """Files of 5 MiB and more go up in parts of `chunksize`, 50 MiB if not given; only the part is repeated."""
    proxy.next(fault, when=nth_part(part))
    fs.put_file(str(large), f"{folder}/x", chunksize=PART, consistency="md5")
    assert direct.cat_file(f"{folder}/x") == large.read_bytes()
    assert proxy.counts == {fault: 1}
    assert len(proxy.requests) == 1 + 6 + 1


def test_a_part_whose_answer_is_lost_needs_the_checksum(
    proxy: FaultyProxy, fs: Any, direct: Any, folder: str, large: Path, pauses: list[float]
) -> None:
    """It is sent again with its old range. Google skips what it has; the fake appends it, and gcsfs checks nothing unless told to."""
    proxy.next("lost_response", when=nth_part(2))
    fs.put_file(str(large), f"{folder}/x", chunksize=PART)
    assert direct.info(f"{folder}/x")["size"] == 7 * PART
    proxy.next("lost_response", when=nth_part(2))
    with pytest.raises(ChecksumError):
        fs.put_file(str(large), f"{folder}/y", chunksize=PART, consistency="md5")


def test_an_upload_whose_last_answer_is_lost_fails_although_it_is_complete(
    proxy: FaultyProxy, fs: Any, direct: Any, folder: str, large: Path, pauses: list[float]
) -> None:
    """The fake has forgotten the upload. The checksum in `info` tells that all is there. gcsfs cancels the upload before it raises."""
    proxy.next("lost_response", when=nth_part(6))
    with pytest.raises((aiohttp.ClientError, FileNotFoundError)):
        fs.put_file(str(large), f"{folder}/x", chunksize=PART)
    assert direct.cat_file(f"{folder}/x") == large.read_bytes()
    assert proxy.requests[-1][0].method == "DELETE"


def test_an_upload_that_fails_is_cancelled_with_six_tries_more(
    proxy: FaultyProxy, fs: Any, direct: Any, folder: str, large: Path, pauses: list[float]
) -> None:
    proxy.next("503", when=lambda request: "upload_id" in request.query, times=ALWAYS)
    with pytest.raises(HttpError):
        fs.put_file(str(large), f"{folder}/x")
    assert [request.method for request, _ in proxy.requests] == ["POST"] * (1 + TRIES) + ["DELETE"] * TRIES
    assert not direct.exists(f"{folder}/x")


def test_content_that_looks_like_the_end_of_the_upload_needs_the_checksum(fs: Any, folder: str) -> None:
    """gcsfs always separates the parts of a small upload with `==0==`; what follows that in the content is lost."""
    content = b"before\n--==0==--\nafter"
    fs.pipe_file(f"{folder}/x", content)
    assert fs.cat_file(f"{folder}/x") == b"before"
    with pytest.raises(ChecksumError):
        fs.pipe_file(f"{folder}/x", content, consistency="md5")
    swap(fs, f"{folder}/x", content, fs.info(f"{folder}/x")["generation"])
    assert fs.cat_file(f"{folder}/x") == content


@pytest.mark.parametrize("fault", ["cut_download", "503"])
def test_a_download_starts_again_or_leaves_nothing(
    fault: Fault, proxy: FaultyProxy, fs: Any, direct: Any, folder: str, large: Path, tmp_path: Path, pauses: list[float]
) -> None:
    """`get_file` retries its retries: 36 downloads, 4 minutes of pauses; with `concurrency=1` it doesn't, and asks for no metadata."""
    target = tmp_path / "got"
    direct.put_file(str(large), f"{folder}/x")

    def downloads() -> int:
        return sum(request.is_download for request, _ in proxy.requests)

    proxy.next(fault, when=lambda request: request.is_download)
    fs.get_file(f"{folder}/x", str(target))
    assert target.read_bytes() == large.read_bytes()
    for options, tries, least_seconds in (({}, TRIES * TRIES, 7 * 31), ({"concurrency": 1}, TRIES, 31)):
        proxy.forget()
        pauses.clear()
        proxy.next(fault, when=lambda request: request.is_download, times=ALWAYS)
        with pytest.raises((HttpError, aiohttp.ClientPayloadError)):
            fs.get_file(f"{folder}/x", str(target), **options)
        assert not target.exists()
        assert downloads() == tries
        assert sum(pauses) >= least_seconds
    assert len(proxy.requests) == TRIES


# Reading ----------------------------------------------------------------------------------------------------------------


def test_info_tells_the_state_of_an_object(fs: Any, proxy: FaultyProxy, folder: str, pauses: list[float]) -> None:
    """It asks for the object and at once for a folder of its name, and takes either answer: a fault of one can go unseen."""
    fs.pipe_file(f"{folder}/x", b"hello")
    proxy.forget()
    info = fs.info(f"{folder}/x")
    assert info["type"] == "file"
    assert info["size"] == 5
    assert info["md5Hash"] == "XUFAKrxLKna5cZ2REBfFkg=="
    assert int(info["generation"]) > 0
    assert info["updated"].endswith("Z")
    assert 1 <= len(proxy.requests) <= 3
    found = fs.find(folder, detail=True)[f"{folder}/x"]
    assert {key: found[key] for key in ("size", "md5Hash", "generation", "updated")} == {
        key: info[key] for key in ("size", "md5Hash", "generation", "updated")
    }
    fs.pipe_file(f"{folder}/x", b"hello")
    assert fs.info(f"{folder}/x")["generation"] != info["generation"]


def test_many_reads_go_at_once_and_keep_their_errors(fs: Any, proxy: FaultyProxy, direct: Any, folder: str, pauses: list[float]) -> None:
    """100 connections are open at most; errors come raw, not turned into FSTimeoutError; names with `*?[` are patterns, not names."""
    direct.pipe({f"{folder}/{number}": b"%d" % number for number in range(200)})
    proxy.rates["slow"] = 1.0
    proxy.slow_seconds = 0.5
    started = time.monotonic()
    paths = [f"{folder}/{number}" for number in range(201)]
    read = fs.cat(paths, on_error="return")
    assert time.monotonic() - started < 201 * proxy.slow_seconds / 3  # one after the other would take at least 201
    assert [read[path] for path in paths[:200]] == [b"%d" % number for number in range(200)]
    assert isinstance(read[paths[200]], FileNotFoundError)
    assert len(proxy.requests) == 201  # no listing, no metadata

    proxy.rates.clear()
    proxy.next("timeout", when=lambda request: request.name.endswith("/7"), times=ALWAYS)
    read = gcs(proxy.url, requests_timeout=aiohttp.ClientTimeout(sock_read=0.2)).cat(paths[:10], on_error="return")
    assert isinstance(read[paths[7]], aiohttp.SocketTimeoutError)
    assert read[paths[8]] == b"8"

    assert fs.cat([paths[0]], on_error="return") == {paths[0]: b"0"}  # a list of one stays a dictionary
    with pytest.raises(FileNotFoundError):
        fs.cat([], on_error="return")
    assert fs.cat([paths[0], f"{folder}/[x]"], on_error="return") == {paths[0]: b"0"}


def test_a_folder_is_what_its_objects_say(fs: Any, folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        fs.ls(f"{folder}/none")
    assert fs.find(f"{folder}/none") == []
    fs.pipe_file(f"{folder}/a/x", b"")
    fs.pipe_file(f"{folder}/ab", b"")
    assert fs.ls(folder, detail=False) == [f"{folder}/a", f"{folder}/ab"]
    assert fs.find(f"{folder}/a") == [f"{folder}/a/x"]
    assert fs.ls(f"{folder}/ab", detail=False) == [f"{folder}/ab"]  # a file is its own listing


def test_without_the_listings_cache_every_answer_is_fresh(proxy: FaultyProxy, direct: Any, folder: str) -> None:
    """With it, gcsfs's default, a folder listed once hides what other processes write there, from `exists` too and for ever."""
    direct.pipe_file(f"{folder}/a", b"1")
    cached, fresh = gcs(proxy.url, use_listings_cache=True), gcs(proxy.url)
    for fs in (cached, fresh):
        fs.ls(folder)
        fs.find(folder)
    direct.pipe_file(f"{folder}/b", b"2")
    assert not cached.exists(f"{folder}/b")
    assert f"{folder}/b" not in cached.ls(folder, detail=False)
    assert cached.cat_file(f"{folder}/b") == b"2"  # reads never use it
    assert fresh.exists(f"{folder}/b")
    assert fresh.info(f"{folder}/b")["size"] == 1
    assert f"{folder}/b" in fresh.ls(folder, detail=False)
    assert f"{folder}/b" in fresh.find(folder)


def test_equal_options_share_one_file_system(server: FakeGcs) -> None:
    """Time-outs are part of the options, threads share it, and a pickled one finds its twin again; see above for forks."""

    def opened(sock_read: float) -> Any:
        return fsspec.filesystem("gs", token="anon", endpoint_url=server.url, requests_timeout=aiohttp.ClientTimeout(sock_read=sock_read))  # noqa: S106

    with ThreadPoolExecutor(4) as pool:
        assert len({id(fs) for fs in pool.map(lambda _: opened(1), range(8))}) == 1
    assert opened(1) is not opened(2)
    assert pickle.loads(pickle.dumps(opened(1))) is opened(1)  # noqa: S301
