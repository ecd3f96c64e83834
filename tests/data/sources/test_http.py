import gzip
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from marin_core.data.ingest import ingest
from marin_core.data.sources import http as http_module
from marin_core.data.sources.config import HttpFile, HttpFiles, IngestConfig
from marin_core.data.sources.http import MAX_TRIES, Http, Patience, is_public_address
from marin_core.data.sources.http_files import OpenedHttpFiles
from marin_core.data.sources.interface import Fetched, Listed, Target, Watch
from marin_core.data.sources.journal import carry_over_files
from marin_core.data.units import read_units
from marin_core.errors import ConfigError, DataError, InfrastructureError, MarinError, PreemptedError
from marin_core.report import Report, SilentReporter
from tests.data.sources.web import Behaviour, Handler, WebServer, cut, redirect, reset, status, swap

DATA = bytes(range(256)) * 4000
LINES = gzip.compress(b'{"text": "a document that is long enough"}\n' * 1000, mtime=0)
SECRET = "do-not-leak-this"  # noqa: S105


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


@dataclass
class Clock:
    """Time that passes only when someone waits."""

    time: float = 0.0
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    def patience(self) -> Patience:
        return Patience(self.sleep, lambda: self.time, lambda: 1.0)


def fetch(url: str, path: Path, *, clock: Clock | None = None, **file: object) -> Fetched:
    """One file by a patient client that may talk to this machine."""
    source = HttpFiles.from_json({"files": [{"url": url, **file}], "allow_private": True})
    opened = OpenedHttpFiles(source, Http(allow_private=True, patience=(clock or Clock()).patience()))
    watch = Watch(SilentReporter())
    return opened.fetch(opened.files(watch)[0], path, watch)


def take(output: Path, **source: object) -> Report:
    config = {"source": {"kind": "http_files", "allow_private": True, **source}, "license": "CC0-1.0", "policy": "TRAINING_ALLOWED"}
    return ingest(IngestConfig.from_json(config), output, SilentReporter())


def test_files_come_as_found_with_their_checksums_and_etags(web: WebServer, tmp_path: Path) -> None:
    web.files = {"/a/x.jsonl.gz": LINES, "/b/x.jsonl.gz": LINES + LINES}
    digest = hashlib.sha256(LINES).hexdigest()
    files = [{"url": f"{web.url}/a/x.jsonl.gz", "sha256": digest}, {"url": f"{web.url}/b/x.jsonl.gz?part=1", "name": "b/x.jsonl.gz"}]
    report = take(tmp_path, files=files)
    units = read_units(tmp_path).units
    assert [(tmp_path / unit.path).read_bytes() for unit in units] == [LINES + LINES, LINES]
    assert units[1].sha256 == digest
    assert units[1].etag is not None
    assert all(check.passed for check in report.checks)
    assert report.metrics["bytes"] == 3 * len(LINES)


def test_the_order_of_files_and_the_number_of_connections_change_nothing(web: WebServer, tmp_path: Path) -> None:
    web.files = {f"/{index}.jsonl": b"%d\n" % index * 10_000 for index in range(9)}
    files = [{"url": web.url + path} for path in web.files]
    first = take(tmp_path / "a", files=files, connections=1)
    second = take(tmp_path / "b", files=files[::-1], connections=8)
    assert first.content_digest == second.content_digest
    assert (tmp_path / "a/units.json").read_bytes() == (tmp_path / "b/units.json").read_bytes()


def test_a_cut_transfer_goes_on_where_it_ended(web: WebServer, tmp_path: Path) -> None:
    web.files["/x.bin"] = DATA
    web.script["/x.bin"] = [cut(100_000), cut(200_000), reset]
    fetched = fetch(f"{web.url}/x.bin", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert fetched.sha256 == hashlib.sha256(DATA).hexdigest()
    ranges = [request.headers.get("Range") for request in web.requests]
    assert ranges == [None, "bytes=100000-", "bytes=300000-", "bytes=300000-"]
    assert len({request.headers.get("If-Range") for request in web.requests[1:]}) == 1


@pytest.mark.parametrize("ignores_if_range", [False, True])
def test_a_file_that_changes_on_the_way_begins_anew(web: WebServer, tmp_path: Path, ignores_if_range: bool) -> None:
    other = DATA[::-1] + b"more"

    def rest_of_another(handler: Handler) -> None:
        handler.headers.replace_header("If-Range", http_etag(other))
        handler.serve(other)

    web.files["/x.bin"] = DATA
    web.script["/x.bin"] = [cut(100_000), swap(other, rest_of_another if ignores_if_range else None)]
    fetched = fetch(f"{web.url}/x.bin", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == other
    assert fetched.etag == http_etag(other)
    assert fetched.size == len(other)


def http_etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def test_a_file_that_changes_all_the_time_is_an_error(web: WebServer, tmp_path: Path) -> None:
    web.files["/x.bin"] = DATA
    web.script["/x.bin"] = [swap(bytes([index]) + DATA, cut(1000 * (index + 1))) for index in range(20)]
    with pytest.raises(DataError, match="changed 4 times"):
        fetch(f"{web.url}/x.bin", tmp_path / "x")


def test_a_server_without_ranges_or_etags_begins_anew(web: WebServer, tmp_path: Path) -> None:
    web.files["/x.bin"] = DATA
    web.script["/x.bin"] = [
        lambda handler: handler.serve(DATA, etag="", cut=100_000),
        lambda handler: handler.serve(DATA, ranges=False, cut=200_000),
        lambda handler: handler.serve(DATA, ranges=False),
    ]
    fetch(f"{web.url}/x.bin", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert [request.headers.get("Range") for request in web.requests] == [None, None, "bytes=200000-"]


@pytest.mark.parametrize("behaviour", [status(500), status(503), status(429), reset, cut(0)], ids=["500", "503", "429", "reset", "cut"])
def test_what_may_pass_is_tried_again_and_then_left_to_later(web: WebServer, tmp_path: Path, behaviour: Behaviour) -> None:
    web.files["/x.bin"] = DATA
    web.script["/x.bin"] = [behaviour] * 3
    fetch(f"{web.url}/x.bin", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    clock = Clock()
    web.script["/x.bin"] = [behaviour] * 100
    with pytest.raises(InfrastructureError, match=f"x.bin: .*, {MAX_TRIES} times in a row"):
        fetch(f"{web.url}/x.bin", tmp_path / "x", clock=clock)
    assert clock.time == pytest.approx(1 + 2 + 4 + 8 + 16 + 32 + 60)


def test_a_server_is_given_the_time_that_it_asks_for_by_all_threads(web: WebServer, tmp_path: Path) -> None:
    web.files = {"/x.bin": DATA, "/y.bin": DATA}
    web.script["/x.bin"] = [status(429, Retry_After="120")]
    clock = Clock()
    http = Http(allow_private=True, patience=clock.patience())
    watch = Watch(SilentReporter())
    with Target(tmp_path / "x", watch) as target:
        http.fetch(f"{web.url}/x.bin", target)
    assert clock.time == pytest.approx(120)
    http._not_before["127.0.0.1"] = 200.0
    with Target(tmp_path / "y", watch) as target:
        http.fetch(f"{web.url}/y.bin", target)
    assert clock.time == pytest.approx(200)


def test_a_server_that_asks_for_hours_is_left_alone(web: WebServer, tmp_path: Path) -> None:
    clock = Clock()
    web.script["/x.bin"] = [status(503, Retry_After="86400")]
    with pytest.raises(InfrastructureError, match="come back in 86400 s"):
        fetch(f"{web.url}/x.bin", tmp_path / "x", clock=clock)
    assert not clock.waits


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_refusal_names_the_address_without_its_query(web: WebServer, tmp_path: Path, code: int) -> None:
    web.script["/x.bin"] = [status(code)] * 2
    with pytest.raises(DataError, match=rf"{web.url}/x.bin answered {code}") as error:
        fetch(f"{web.url}/x.bin?page=7", tmp_path / "x")
    assert "page=7" not in str(error.value)
    assert len(web.requests) == 1


def test_another_length_than_announced_is_an_error(web: WebServer, tmp_path: Path) -> None:
    def announces_less(handler: Handler) -> None:
        handler.answer(206, DATA[:100], {"Content-Range": f"bytes 0-99/{50}", "Content-Length": "100"})

    web.script["/x.bin"] = [announces_less]
    with pytest.raises(DataError, match="announces 50 bytes and sends 100"):
        fetch(f"{web.url}/x.bin", tmp_path / "x")


def test_another_checksum_than_declared_is_an_error(web: WebServer, tmp_path: Path) -> None:
    web.files["/x.bin"] = DATA
    with pytest.raises(DataError, match=hashlib.sha256(DATA).hexdigest()):
        fetch(f"{web.url}/x.bin", tmp_path / "x", sha256="0" * 64)


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.tar", "x.parquet", "x.pdf", "x.zip", "x.jsonl", "x.warc.gz"])
@pytest.mark.parametrize(
    ("page", "what"),
    [
        (b"<!DOCTYPE html><html><body>Please log in", "an HTML page"),
        (b"\xef\xbb\xbf \n<!-- x --><HTML lang=en>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "a Git LFS pointer"),
    ],
)
def test_a_page_or_pointer_instead_of_data_is_an_error(web: WebServer, tmp_path: Path, name: str, page: bytes, what: str) -> None:
    web.files[f"/{name}"] = page
    with pytest.raises(DataError, match=f"{web.url}/{name}: .* is {what}"):
        fetch(f"{web.url}/{name}", tmp_path / "x")


def test_a_page_is_welcome_where_one_is_promised(web: WebServer, tmp_path: Path) -> None:
    web.files = {"/a.html": b"<!doctype html><html>", "/b.html.gz": b"<html>", "/c.jsonl.gz": b'{"text": "not packed"}'}
    report = take(tmp_path, files=[{"url": web.url + path} for path in web.files])
    assert report.metrics["extension_mismatch"] == 2


def test_five_redirects_are_followed_and_no_more(web: WebServer, tmp_path: Path) -> None:
    web.files["/x.bin"] = DATA
    for index in range(5):
        web.script[f"/r{index}"] = [redirect(f"/r{index + 1}" if index < 4 else "/x.bin")] * 2
    fetch(f"{web.url}/r0", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    web.script["/start"] = [redirect("/r0")]
    with pytest.raises(DataError, match="start redirects more than 5 times"):
        fetch(f"{web.url}/start", tmp_path / "x")
    web.script["/loop"] = [redirect("/loop")] * 100
    with pytest.raises(DataError, match="redirects more than 5 times"):
        fetch(f"{web.url}/loop", tmp_path / "x")
    assert len(web.of("/loop")) == 6


@pytest.mark.parametrize("location", ["ftp://example.org/x", "file:///etc/passwd"])
def test_a_redirect_to_another_protocol_is_refused(web: WebServer, tmp_path: Path, location: str) -> None:
    web.script["/x"] = [redirect(location)]
    with pytest.raises(DataError, match="redirects to"):
        fetch(f"{web.url}/x", tmp_path / "x")


def test_encryption_is_never_given_up() -> None:
    with pytest.raises(DataError, match="from https to http"):
        http_module._redirected("https://a.org/x", "https://a.org/x", "http://a.org/x?sig=1")
    assert http_module._redirected("http://a.org/x", "http://a.org/x", "https://a.org/y") == "https://a.org/y"


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "2130706433", "0x7f.1"])
def test_a_redirect_to_a_private_address_is_refused_before_a_byte_is_sent(web: WebServer, tmp_path: Path, host: str) -> None:
    """The first connection plays one to the public internet."""
    web.script["/x"] = [redirect(f"http://{host}:{web.port}/inner?token={SECRET}")]
    http = Http(patience=Clock().patience(), is_public=once(lambda address: True, then=is_public_address))
    with Target(tmp_path / "x", Watch(SilentReporter())) as target, pytest.raises(DataError, match="not on the public internet") as error:
        http.fetch(f"{web.url}/x", target)
    assert [request.path for request in web.requests] == ["/x"]
    assert SECRET not in str(error.value)


def once(first: Callable[[str], bool], then: Callable[[str], bool]) -> Callable[[str], bool]:
    """The first connection, which asks twice, is judged by another rule than those after it."""
    asked = iter([first, first])
    return lambda address: next(asked, then)(address)


def test_encrypted_connections_are_watched_and_verified_too(web: WebServer, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{web.port}/x"
    watch = Watch(SilentReporter())
    with Target(tmp_path / "x", watch) as target, pytest.raises(DataError, match="not on the public internet"):
        Http(patience=Clock().patience()).fetch(url, target)
    with Target(tmp_path / "x", watch) as target, pytest.raises(InfrastructureError, match="the connection failed"):
        Http(patience=Clock().patience(), is_public=lambda address: True).fetch(url, target)  # this server can't encrypt
    assert not web.requests


def test_private_addresses_are_refused_unless_allowed(web: WebServer, tmp_path: Path) -> None:
    web.files["/x.bin"] = DATA
    with pytest.raises(DataError, match=r"127\.0\.0\.1, which is not on the public internet"):
        take(tmp_path, files=[{"url": f"{web.url}/x.bin"}], allow_private=False)
    assert not web.requests


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("127.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("168.63.129.16", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:a9fe:a9fe::1", False),
        ("::ffff:8.8.8.8", True),
        ("nonsense", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public_address(address) == public


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@example.org/x.gz",
        f"https://{SECRET}@example.org/x.gz",
        f"https://example.org/x.gz?X-Amz-Signature={SECRET}",
        f"https://example.org/x.gz?X-Goog-Signature={SECRET}",
        f"https://example.org/x.gz?sp=r&sig={SECRET}",
        f"https://example.org/x.gz?access_token={SECRET}",
        f"ftp://user:{SECRET}@example.org/x.gz",
        f"https://user:{SECRET}@example.org:port/x.gz",
    ],
)
def test_a_secret_in_a_url_is_refused_without_showing_it(url: str) -> None:
    for make in (lambda: HttpFile(url=url), lambda: HttpFiles.from_json({"files": [{"url": url}]})):
        with pytest.raises(ConfigError) as error:
            make()
        assert SECRET not in str(error.value)


@pytest.fixture
def every_logger() -> Iterator[None]:
    """Loggers that other code of this process has silenced speak again: a client of Kubernetes, for one, raises urllib3's level."""
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    before = [(logger, logger.disabled, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.disabled, logger.propagate = False, True
        logger.setLevel(logging.NOTSET)
    yield
    for logger, disabled, propagate, level in before:
        logger.disabled, logger.propagate = disabled, propagate
        logger.setLevel(level)


@pytest.mark.usefixtures("every_logger")
def test_a_signed_redirect_leaves_no_trace(web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    signed = f"/store/x.jsonl.gz?X-Amz-Signature={SECRET}"
    web.files["/store/x.jsonl.gz"] = LINES
    web.script["/x.jsonl.gz"] = [redirect(signed)] * 20
    with caplog.at_level(logging.DEBUG):
        take(tmp_path / "a", files=[{"url": f"{web.url}/x.jsonl.gz"}])
    texts = [path.read_text(errors="replace") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    errors = []
    for behaviour in (status(403), reset, cut(10), redirect(f"http://127.0.0.1:1/x?sig={SECRET}"), redirect(f"ftp://h/x?sig={SECRET}")):
        web.script["/store/x.jsonl.gz"] = [behaviour] * 20
        with caplog.at_level(logging.DEBUG), pytest.raises(MarinError) as error:
            fetch(f"{web.url}/x.jsonl.gz", tmp_path / "x")
        errors += [str(error.value), *traceback.format_exception(error.value)]
    assert caplog.records
    assert SECRET not in "".join([*texts, *errors, caplog.text])


def test_credentials_come_from_netrc_and_stay_with_their_host(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    web.files["/there"] = DATA
    web.script["/x"] = [redirect(f"http://localhost:{web.port}/there")]
    fetch(f"{web.url}/x", tmp_path / "x")
    assert [("Authorization" in request.headers) for request in web.requests] == [True, False]


def test_an_index_names_the_files(web: WebServer, tmp_path: Path) -> None:
    lines = ["data/q=high/a.jsonl.gz", "data/q=low/b.jsonl.gz", "", "data/q=high/c.jsonl.gz", f"{web.url}/data/q=high/d.jsonl.gz"]
    index = gzip.compress("\n".join(lines[:2]).encode() + b"\n") + gzip.compress("\n".join(lines[2:]).encode())
    web.files = {"/paths.gz": index} | {f"/data/q=high/{name}.jsonl.gz": LINES for name in "acd"}
    source = {"index": {"url": f"{web.url}/paths.gz", "sha256": hashlib.sha256(index).hexdigest()}, "base": f"{web.url}/"}
    report = take(tmp_path, **source, pattern="data/q=high/**")
    assert [unit.origin for unit in read_units(tmp_path).units] == [f"data%2fq%3dhigh%2f{name}.jsonl.gz" for name in "acd"]
    assert report.metrics["skipped/other_pattern"] == 1
    assert report.metrics["index_sha256"] == hashlib.sha256(index).hexdigest()
    with pytest.raises(DataError, match="no line of the index"):
        take(tmp_path, **source, pattern="nothing/**")
    for broken, why in ((index[:-9], "cut short"), (b"\xff\xfe\n", "can't be read"), (b"a\na\n", "again"), (b"ftp://h/x\n", "no address")):
        web.files["/paths.gz"] = broken
        with pytest.raises(DataError, match=why):
            take(tmp_path, index={"url": f"{web.url}/paths.gz"}, base=f"{web.url}/")


def test_one_failure_ends_the_other_downloads(web: WebServer, tmp_path: Path) -> None:
    released, halfway = threading.Event(), threading.Event()

    def stalls(handler: Handler) -> None:
        handler.send_response_only(200)
        handler.send_header("Content-Length", str(2 * len(DATA)))
        handler.end_headers()
        handler.wfile.write(DATA)
        halfway.set()
        released.wait(20)
        handler.wfile.write(DATA)

    def refuses(handler: Handler) -> None:
        halfway.wait(20)
        handler.answer(404, b"")
        released.set()

    web.script = {"/slow.bin": [stalls], "/missing.bin": [refuses]}
    with pytest.raises(DataError, match=r"missing\.bin answered 404"):
        take(tmp_path, files=[{"url": f"{web.url}/slow.bin"}, {"url": f"{web.url}/missing.bin"}], connections=2)
    assert not (tmp_path / "units.json").exists()


def test_a_request_to_stop_is_obeyed_within_a_block(web: WebServer, tmp_path: Path) -> None:
    class Stopping(SilentReporter):
        seen = 0

        def progress(self, done: int, total: int, unit: str) -> None:
            assert unit == "bytes"
            self.seen = done

        def stop_requested(self) -> bool:
            return self.seen > 0

    web.files["/x.bin"] = DATA * 5
    reporter = Stopping()
    source = HttpFiles(files=(HttpFile(url=f"{web.url}/x.bin"),), allow_private=True)
    with pytest.raises(PreemptedError):
        ingest(IngestConfig(source=source, license="x", policy="BLOCKED"), tmp_path, reporter)
    assert 0 < reporter.seen < 5 * len(DATA)


def test_a_full_disk_is_no_network_failure(web: WebServer) -> None:
    web.files["/x.bin"] = DATA
    with pytest.raises(OSError, match="No space left"):
        fetch(f"{web.url}/x.bin", Path("/dev/full"))
    assert len(web.requests) == 1


SCRIPT = """
import sys
from pathlib import Path
from marin_core.data.ingest import ingest
from marin_core.data.sources.config import IngestConfig
from marin_core.report import SilentReporter
ingest(IngestConfig.from_json(__import__("json").loads(sys.argv[1])), Path(sys.argv[2]), SilentReporter())
"""


@pytest.fixture
def killed(web: WebServer, tmp_path: Path) -> dict[str, object]:
    """The configuration of an ingestion of three files whose process was killed in the middle of the second, in the folder `killed`."""
    halfway, released = threading.Event(), threading.Event()

    def stalls(handler: Handler) -> None:
        handler.send_response_only(200)
        handler.send_header("Content-Length", str(2 * len(DATA)))
        handler.end_headers()
        handler.wfile.write(DATA)
        handler.wfile.flush()
        halfway.set()
        released.wait(30)

    web.files = {f"/{name}.bin": DATA + name.encode() for name in "abc"}
    web.script["/b.bin"] = [stalls]
    files = [{"url": web.url + path} for path in web.files]
    source = {"kind": "http_files", "files": files, "allow_private": True, "connections": 1}
    config: dict[str, object] = {"source": source, "license": "x", "policy": "BLOCKED"}
    child = subprocess.Popen([sys.executable, "-c", SCRIPT, json.dumps(config), str(tmp_path / "killed")])
    assert halfway.wait(30)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    released.set()
    assert not (tmp_path / "killed/units.json").exists()
    web.requests.clear()
    return config


def finish(config: object, output: Path) -> str:
    """Ingest to the end; the digest of all that is there."""
    report = ingest(IngestConfig.from_json(config), output, SilentReporter())
    assert all(check.passed for check in report.checks)
    files = sorted(path for path in output.rglob("*") if path.is_file())
    assert all(path.parent.name == "documents" or path.name == "units.json" for path in files)
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def fetched_whole(web: WebServer) -> list[str]:
    return [request.path for request in web.requests if "If-None-Match" not in request.headers]


def test_after_a_kill_only_the_rest_is_fetched(web: WebServer, killed: object, tmp_path: Path) -> None:
    (tmp_path / "killed/units/documents/left-behind").write_bytes(b"x")
    with (tmp_path / "killed/fetched.jsonl").open("ab") as file:
        file.write(b'{"path": "units/documents/b.bi')  # as a dying writer leaves it
    (tmp_path / "next").mkdir()
    carry_over_files(tmp_path / "killed", tmp_path / "next")
    digest = finish(killed, tmp_path / "next")
    assert fetched_whole(web) == ["/b.bin", "/c.bin"]
    assert (tmp_path / "killed/units/documents/a.bin").read_bytes() == DATA + b"a"
    assert finish(killed, tmp_path / "killed") == digest  # in the same folder, as in another, as from nothing
    assert finish(killed, tmp_path / "fresh") == digest


@pytest.mark.parametrize("change", ["damaged here", "lengthened here", "gone here", "changed there", "claimed elsewhere"])
def test_what_an_earlier_try_left_is_not_believed_unseen(web: WebServer, killed: object, tmp_path: Path, change: str) -> None:
    left, journal = tmp_path / "killed/units/documents/a.bin", tmp_path / "killed/fetched.jsonl"
    if change == "damaged here":
        left.write_bytes(b"\1" + left.read_bytes()[1:])
    elif change == "lengthened here":
        left.write_bytes(left.read_bytes() + b"!")
    elif change == "gone here":
        left.unlink()
    elif change == "changed there":
        web.files["/a.bin"] = b"new" + DATA
    else:
        journal.write_bytes(journal.read_bytes().replace(b"units/documents/a.bin", b"../../outside"))
    digest = finish(killed, tmp_path / "killed")
    assert fetched_whole(web) == ["/a.bin", "/b.bin", "/c.bin"]
    assert digest == finish(killed, tmp_path / "fresh")
    assert left.read_bytes() == web.files["/a.bin"]


def test_memory_stays_flat(web: WebServer, tmp_path: Path) -> None:
    import tracemalloc

    web.files["/x.bin"] = bytes(64 << 20)
    source = HttpFiles(files=(HttpFile(url=f"{web.url}/x.bin"),), allow_private=True)
    opened = OpenedHttpFiles(source)
    watch = Watch(SilentReporter())
    listed = opened.files(watch)[0]
    tracemalloc.start()
    opened.fetch(listed, tmp_path / "x", watch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert isinstance(listed, Listed)
