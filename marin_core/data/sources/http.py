"""Fetch files by HTTP as they are: resumed when cut, retried where that helps, and never from where this machine shouldn't look.

No error, log line or record of this module shows the user, password, query or fragment of a URL, since redirects of content networks
are signed. Errors of requests and urllib3 quote whole addresses, so none of their texts is repeated, and none is chained.
"""

import ipaddress
import logging
import random
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock, local
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies, select_proxy
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from marin_core.data.sources.interface import BLOCK_BYTES, Target, Watch
from marin_core.data.sources.urls import bare_url
from marin_core.errors import DataError, InfrastructureError

MAX_REDIRECTS = 5
MAX_TRIES = 8
"""Tries in a row without a byte of progress."""
MAX_RESTARTS = 3
"""Times that a file may turn out to be another one in the middle of its download."""
LONGEST_BACKOFF_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 3600.0
"""A server that asks for more patience is left alone, and so is the machine that would only wait."""
TIMEOUT_SECONDS = (10.0, 60.0)
"""To connect, and of silence while reading."""
AGENT = "marin-ingest/1"
RETRIED = frozenset({408, 425, 429})
METADATA_SERVICES = frozenset({"168.63.129.16"})
"""Addresses inside a cloud that answer to machines and look public (Azure's); the others are link-local or private."""

_TRANSPORT_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError)


@dataclass
class Patience:
    """How time passes: given by tests, so that nothing waits there.

    Attributes:
        sleep: waits so many seconds.
        now: seconds of a clock that never goes back.
        jitter: a number from 0 to 1, so that many clients don't come back at once.
    """

    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random


@dataclass(frozen=True)
class Answer:
    """What the server said about a file that was fetched whole."""

    etag: str | None


class _Retry(Exception):  # noqa: N818 - a signal inside this module
    """The try failed in a way that may pass."""

    def __init__(self, why: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.retry_after_seconds = retry_after_seconds


@dataclass
class Http:
    """A client for all files of a source, used by several threads: each has its own connections, all wait where a host asks for it.

    Attributes:
        allow_private: talk to addresses of private networks and of this machine.
        is_public: whether an address belongs to the public internet.
    """

    allow_private: bool = False
    patience: Patience = field(default_factory=Patience)
    is_public: Callable[[str], bool] = field(default_factory=lambda: is_public_address)

    def __post_init__(self) -> None:
        self._threads = local()
        self._lock = Lock()
        self._not_before: dict[str, float] = {}

    def fetch(self, url: str, target: Target, headers: Mapping[str, str] | None = None, *, expected: bool = False) -> Answer:
        """Write all bytes of a file.

        Args:
            headers: sent; `Authorization` to the host of `url` and to no other.
            expected: the file's size has been told to the target's watch already.

        Raises:
            DataError: the server refuses, redirects where it mustn't, or gives another file each time.
            InfrastructureError: it doesn't answer, or not completely, after all tries.
        """
        download = _Download(self, url, target, dict(headers or {}), expected)
        failures, until = 0, 0.0
        while True:
            self._wait(url, until, target.watch)
            before = target.size
            try:
                return download.attempt()
            except _Retry as retry:
                failures = 1 if target.size > before else failures + 1
                if failures >= MAX_TRIES:
                    raise InfrastructureError(
                        f"{bare_url(url)}: {retry.why}, {failures} times in a row", advice="Try again when the server answers."
                    ) from None
                backoff = min(LONGEST_BACKOFF_SECONDS, 2.0 ** (failures - 1)) * (0.5 + 0.5 * self.patience.jitter())
                until = self.patience.now() + backoff
                self._postpone(url, retry)

    def stands(self, url: str, etag: str, watch: Watch) -> bool:
        """Whether the server still has the file under an ETag; False also where it doesn't say."""
        self._wait(url, 0.0, watch)
        try:
            with self.open(url, {"If-None-Match": etag}) as response:
                return response.status_code == 304
        except _Retry:
            return False

    def _postpone(self, url: str, retry: _Retry) -> None:
        """Let all threads wait for as long as a host asks for."""
        if retry.retry_after_seconds > LONGEST_WAIT_SECONDS:
            raise InfrastructureError(
                f"{bare_url(url)}: {retry.why}, and asks to come back in {retry.retry_after_seconds:.0f} s", advice="Start it again then."
            ) from None
        if retry.retry_after_seconds:
            until = self.patience.now() + retry.retry_after_seconds
            with self._lock:
                self._not_before[_host(url)] = max(until, self._not_before.get(_host(url), 0.0))

    def _wait(self, url: str, until: float, watch: Watch) -> None:
        while True:
            watch.check()
            with self._lock:
                left = max(until, self._not_before.get(_host(url), 0.0)) - self.patience.now()
            if left <= 0:
                return
            self.patience.sleep(min(left, 5.0))

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str]) -> Iterator[requests.Response]:
        """The answer to one request, redirects followed; its body isn't read yet.

        Raises:
            DataError: a redirect leads where it mustn't.
            _Retry: there is no answer.
        """
        first, place = urlsplit(url), url
        for _ in range(MAX_REDIRECTS + 1):
            same_origin = urlsplit(place)[:2] == first[:2]
            response = self._get(place, headers if same_origin else {k: v for k, v in headers.items() if k.lower() != "authorization"})
            with response:
                if not response.is_redirect:
                    yield response
                    return
                place = _redirected(url, place, response.headers["Location"])
        raise DataError(f"{bare_url(url)} redirects more than {MAX_REDIRECTS} times", advice="Give the address of the file itself.")

    def _get(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        if not self.allow_private and select_proxy(url, get_environ_proxies(url)):
            _refuse_private(_host(url), _addresses(_host(url)), self.is_public)  # else the proxy would look there for us
        keeps_authorization = (lambda request: request) if "Authorization" in headers else None
        try:
            return self._session().get(
                url, headers=headers, stream=True, allow_redirects=False, timeout=TIMEOUT_SECONDS, auth=keeps_authorization
            )
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, UnicodeError):
            raise DataError(f"{bare_url(url)} is no address that can be fetched", advice="Correct the URL.") from None
        except _TRANSPORT_ERRORS as error:
            raise _Retry(_why(error)) from None

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._threads, "session", None)
        if session is None:
            session = self._threads.session = requests.Session()
            session.headers.update({"User-Agent": AGENT, "Accept": "*/*", "Accept-Encoding": "identity"})
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter() if self.allow_private else _PublicAdapter(self.is_public))
        return session


class _Download:
    """One file on its way: what is known of it from try to try."""

    def __init__(self, http: Http, url: str, target: Target, headers: dict[str, str], expected: bool) -> None:
        self._http = http
        self._url = url
        self._target = target
        self._headers = headers
        self._validator: str | None = None
        self._restarts = 0
        self._expected = expected

    def attempt(self) -> Answer:
        """Try to get the rest of the file.

        Raises:
            DataError, InfrastructureError: trying again doesn't help.
            _Retry: it may.
        """
        target = self._target
        if target.size and self._validator is None:
            target.restart()  # nothing would tell whether the rest belongs to the same file
        asked = {"Range": f"bytes={target.size}-", "If-Range": self._validator} if target.size and self._validator else {}
        with self._http.open(self._url, self._headers | asked) as response:
            _refuse_status(self._url, response)
            if response.status_code == 416:
                self._start_anew()
                raise _Retry("answered 416 to the rest of a file")
            total = self._continue_at(response)
            if total is not None and not self._expected:
                target.watch.expect(total)
                self._expected = True
            self._validator = _validator(response)
            for block in _blocks(response):
                target.write(block)
        if total is not None and target.size < total:
            raise _Retry(f"sent {target.size} of {total} bytes")
        if total is not None and target.size > total:
            raise DataError(
                f"{bare_url(self._url)} announces {total} bytes and sends {target.size}", advice="Report it to who runs the server."
            )
        return Answer(response.headers.get("ETag"))

    def _continue_at(self, response: requests.Response) -> int | None:
        """Make the file as long as what comes continues it; returns the length of the whole."""
        target = self._target
        if response.headers.get("Content-Encoding", "identity") not in ("identity", ""):
            raise DataError(
                f"{bare_url(self._url)} is sent compressed although the bytes as they are were asked for",
                advice="Report it to who runs the server, or use a mirror.",
            )
        length = response.headers.get("Content-Length", "")
        if response.status_code == 206:
            start, total = _content_range(response)
            # A server may ignore If-Range and send the rest of another file.
            if start == target.size and _validator(response) == self._validator:
                return total
            self._start_anew()
            raise _Retry("sent another part than asked for")
        if target.size:
            changed = _validator(response) != self._validator
            self._start_anew(changed=changed)
        return int(length) if length.isdigit() else None

    def _start_anew(self, *, changed: bool = True) -> None:
        self._target.restart()
        self._validator = None
        self._restarts += changed
        if self._restarts > MAX_RESTARTS:
            raise DataError(
                f"{bare_url(self._url)} changed {self._restarts} times while it was read", advice="Fetch it when nothing writes to it."
            )


def _blocks(response: requests.Response) -> Iterator[bytes]:
    """The body as it is sent."""
    stream = response.raw.stream(BLOCK_BYTES, decode_content=False)
    while True:
        try:
            block = next(stream, None)
        except _TRANSPORT_ERRORS as error:
            raise _Retry(_why(error)) from None
        if block is None:
            return
        yield block


def _refuse_status(url: str, response: requests.Response) -> None:
    status = response.status_code
    if status in (200, 206, 416):
        return
    if status in RETRIED or status >= 500:
        raise _Retry(f"answered {status}", _retry_after(response.headers.get("Retry-After", "")))
    advice = {
        401: "It wants a login: put one for this host into ~/.netrc of whoever runs the job.",
        403: "It may want a login or an agreement; open it in a browser.",
        404: "Correct the URL, or ask whether the file has moved.",
    }
    raise DataError(f"{bare_url(url)} answered {status}", advice=advice.get(status, "Open it in a browser, and correct the URL."))


def _retry_after(value: str) -> float:
    """Seconds of a `Retry-After` header, which is a number or a date (RFC 9110 §10.2.3); 0 if it is neither."""
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _validator(response: requests.Response) -> str | None:
    """What `If-Range` may name: a strong ETag, else the time of the last change (RFC 9110 §13.1.5)."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified")


def _content_range(response: requests.Response) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
    if found is None:
        return None, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _redirected(url: str, place: str, location: str) -> str:
    target = urljoin(place, location)
    scheme = urlsplit(target).scheme
    if scheme not in ("http", "https") or (urlsplit(place).scheme == "https" and scheme == "http"):
        raise DataError(
            f"{bare_url(url)} redirects to {bare_url(target)}, from {urlsplit(place).scheme} to {scheme}",
            advice="Give an address that stays encrypted.",
        )
    return target


def _why(error: BaseException) -> str:
    """What broke, without a word of the error's own text, which quotes the URL."""
    inner: BaseException | None = error
    seen = 0
    while inner is not None and seen < 8:
        if isinstance(inner, OSError) and inner.strerror and not isinstance(inner, requests.RequestException):
            return f"the connection failed ({inner.strerror})"
        arguments = [argument for argument in (getattr(inner, "reason", None), *inner.args) if isinstance(argument, BaseException)]
        inner = arguments[0] if arguments else inner.__cause__ or inner.__context__
        seen += 1
    return f"the connection failed ({type(error).__name__})"


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()


def is_public_address(address: str) -> bool:
    """Whether an IP address belongs to the public internet, whatever form it hides in."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in ipaddress.ip_network("64:ff9b::/96"):  # NAT64
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public_address(str(inner))
    return ip.is_global and not ip.is_multicast and str(ip) not in METADATA_SERVICES


def _addresses(host: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def _refuse_private(host: str, addresses: list[str], is_public: Callable[[str], bool]) -> None:
    for address in addresses:
        if not is_public(address):
            raise DataError(
                f"host {host!r} is at {address}, which is not on the public internet",
                advice="Set allow_private if the file really is in your own network.",
            )


class _PublicConnection:
    """Refuses to talk to an address that isn't public: before connecting, and again once connected, since a name may move between."""

    is_public: Callable[[str], bool]
    host: str
    sock: Any

    def _new_conn(self) -> socket.socket:
        _refuse_private(self.host, _addresses(self.host), self.is_public)
        connected: socket.socket = super()._new_conn()  # type: ignore[misc]
        try:
            _refuse_private(self.host, [str(connected.getpeername()[0])], self.is_public)
        except DataError:
            connected.close()
            raise
        return connected


class _PublicAdapter(HTTPAdapter):
    def __init__(self, is_public: Callable[[str], bool]) -> None:
        self._is_public = is_public
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        rule = {"is_public": staticmethod(self._is_public)}
        plain = type("PublicConnection", (_PublicConnection, HTTPConnection), rule)
        secure = type("PublicTlsConnection", (_PublicConnection, HTTPSConnection), rule)
        self.poolmanager.pool_classes_by_scheme = {
            "http": type("PublicPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("PublicTlsPool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
        }


def _without_query(record: logging.LogRecord) -> bool:
    """urllib3 writes the address of every request to its debug log; the query goes."""
    if isinstance(record.args, tuple):
        record.args = tuple(argument.partition("?")[0] if isinstance(argument, str) else argument for argument in record.args)
    return True


logging.getLogger("urllib3.connectionpool").addFilter(_without_query)
