"""A small HTTP server that answers as an API server does where tests say so. It is no cluster: nothing happens in it by itself."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from marin_assets.launch.kubernetes.client import Cluster

type Json = dict[str, Any]

TOKEN = "first"  # noqa: S105
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)


@dataclass
class Fault:
    """What becomes of the next requests of a kind.

    Attributes:
        method, path: which requests; `path` is a regular expression.
        status: to answer with; None = close the connection.
        late: do what is asked first.
        times: how many requests it hits.
    """

    method: str
    path: str
    status: int | None = None
    reason: str = ""
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    late: bool = False
    times: int = 1


class ScriptedApi:
    """Keeps objects by path, with versions, uids, label selectors, foreground deletion and watches; and fails as it is told.

    Attributes:
        requests: how many of each method and kind (`GET jobsets`) came.
        lingers: names of objects that stay, with a deletionTimestamp, when they are deleted.
        tokens: which are taken.
        clock: what time it is for objects.
        texts: path → answer that is no object, such as a pod's log.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.requests: Counter[str] = Counter()
        self.lingers: set[str] = set()
        self.tokens = {TOKEN}
        self.texts: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.events: list[tuple[int, str, Json]] = []
        self.oldest = 0
        self.clock: Callable[[], float] = time.time
        self._version = 100
        self._changed = threading.Condition(threading.RLock())
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    # Its life -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Serve, at the same port as before if it served before."""
        api = self

        class Handler(_Handler):
            server_api = api

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="scripted API", daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()
        with self._changed:
            self._changed.notify_all()

    @property
    def serves(self) -> bool:
        return self._server is not None

    def cluster(self, tokens: list[str] | None = None) -> Cluster:
        """A connection to it.

        Args:
            tokens: which one each new connection brings along; the last stays.
        """
        given = list(tokens or [TOKEN])

        def connect() -> Any:
            from kubernetes import client

            configuration = client.Configuration()
            configuration.host = f"http://127.0.0.1:{self.port}"
            configuration.retries = False
            configuration.api_key["BearerToken"] = f"Bearer {given.pop(0) if len(given) > 1 else given[0]}"
            return client.ApiClient(configuration)

        return Cluster(connect, lambda: self.clock())

    # What tests do ------------------------------------------------------------------------------------------------------

    def fail(self, *faults: Fault) -> None:
        with self._changed:
            self.faults.extend(faults)

    def put(self, path: str, thing: Json) -> Json:
        """Create or replace an object, as a controller would."""
        with self._changed:
            self._version += 1
            metadata = thing.setdefault("metadata", {})
            metadata.setdefault("uid", f"uid-{self._version}")
            metadata.setdefault("creationTimestamp", self.stamp())
            metadata["resourceVersion"] = str(self._version)
            kind = "MODIFIED" if path in self.objects else "ADDED"
            self.objects[path] = deepcopy(thing)
            self._happened(kind, path)
            return deepcopy(thing)

    def change(self, path: str, change: Callable[[Json], None]) -> Json:
        """Change an object in place."""
        with self._changed:
            thing = self.objects[path]
            change(thing)
            return self.put(path, thing)

    def remove(self, path: str) -> None:
        with self._changed:
            if path in self.objects:
                self._version += 1
                self._happened("DELETED", path)
                del self.objects[path]

    def forget_events(self) -> None:
        """As etcd does when it is compacted: who asks for what was before is told that it is gone."""
        with self._changed:
            self.oldest = self._version + 1
            self.events.clear()
            self._version += 1

    def stamp(self) -> str:
        """The time as objects have it."""
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def of(self, plural: str) -> dict[str, Json]:
        """Objects of a kind, by name."""
        with self._changed:
            return {str(each["metadata"]["name"]): deepcopy(each) for path, each in self.objects.items() if f"/{plural}/" in path}

    def total(self) -> int:
        with self._changed:
            return self.requests.total()

    def _happened(self, kind: str, path: str) -> None:
        self.events.append((self._version, kind, deepcopy(self.objects[path])))
        self._changed.notify_all()

    # What clients do ----------------------------------------------------------------------------------------------------

    def fault(self, method: str, path: str) -> Fault | None:
        with self._changed:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, method: str, path: str, query: dict[str, str], body: Json | None) -> tuple[int, Json]:
        with self._changed:
            found = PATH.fullmatch(path)
            assert found is not None, path
            if method == "POST":
                return self._create(f"{path}/{body['metadata']['name']}" if body else path, body or {}, dry="dryRun" in query)
            if method == "GET" and found["name"] is None:
                return 200, self._list(path, query.get("labelSelector"))
            if path not in self.objects:
                return status(404, "NotFound", f"{path} not found")
            if method == "GET":
                return 200, self.objects[path]
            return (
                self._delete(path, body or {}) if method == "DELETE" else (200, self.change(path, lambda thing: merge(thing, body or {})))
            )

    def _create(self, path: str, body: Json, *, dry: bool) -> tuple[int, Json]:
        there = self.objects.get(path)
        if there is not None:
            deleted = "object is being deleted: " if "deletionTimestamp" in there["metadata"] else ""
            return status(409, "AlreadyExists", f'{deleted}"{body["metadata"]["name"]}" already exists')
        return 201, body if dry else self.put(path, body)

    def _delete(self, path: str, options: Json) -> tuple[int, Json]:
        thing = self.objects[path]
        wanted = options.get("preconditions", {}).get("uid")
        if wanted not in (None, thing["metadata"]["uid"]):
            return status(409, "Conflict", f"the UID in the precondition ({wanted}) does not match")
        if thing["metadata"]["name"] in self.lingers:
            return 200, self.change(path, lambda each: each["metadata"].setdefault("deletionTimestamp", self.stamp()))
        self.remove(path)
        return 200, {"kind": "Status", "status": "Success"}

    def _list(self, path: str, selector: str | None) -> Json:
        items = [
            each for where, each in sorted(self.objects.items()) if where.rpartition("/")[0] == path and selects(selector, each["metadata"])
        ]
        return {"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": deepcopy(items)}

    def next_event(self, path: str, selector: str | None, after: int, seconds: float) -> tuple[int, Json] | None:
        """The first event on a kind after a version; None if there is none for so long, or the server stops."""
        plural = path.rpartition("/")[2]

        def found() -> tuple[int, Json] | None:
            for version, kind, thing in self.events:
                if version > after and plural == PLURALS.get(thing.get("kind", "")) and selects(selector, thing["metadata"]):
                    return version, {"type": kind, "object": thing}
            return None

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or not self.serves, timeout=seconds)
            return found() if self.serves else None


PLURALS = {"JobSet": "jobsets", "Workload": "workloads", "Job": "jobs", "Pod": "pods"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is none."""


class _Handler(BaseHTTPRequestHandler):
    server_api: ScriptedApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def _serve(self, method: str) -> None:
        api = self.server_api
        if not api.serves:  # a connection from before it was stopped
            self.close_connection = True
            return
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        found = PATH.fullmatch(url.path)
        watching = " watch" if query.get("watch") == "true" else ""
        with api._changed:
            api.requests[f"{method} {found['plural'] if found else url.path}{watching}"] += 1
        fault = api.fault(method, self.path)
        if fault is not None and fault.late:
            api.answer(method, url.path, query, body)
        if fault is not None and fault.status is None:
            self.close_connection = True
            return
        if fault is not None and fault.status is not None:
            self._send(*status(fault.status, fault.reason, fault.message), headers=fault.headers)
        elif self.headers.get("Authorization") not in {f"Bearer {token}" for token in api.tokens}:
            self._send(*status(401, "Unauthorized", "Unauthorized"))
        elif query.get("watch") == "true":
            self._watch(url.path, query)
        elif url.path in api.texts:
            self._write(200, api.texts[url.path].encode())
        else:
            self._send(*api.answer(method, url.path, query, body))

    def _watch(self, path: str, query: dict[str, str]) -> None:
        api = self.server_api
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")  # as the real one: without it a client sees no event before it has 64 KiB of them
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        after = int(query["resourceVersion"])
        if after < api.oldest:
            _, gone = status(410, "Expired", f"too old resource version: {after}")
            self._send_chunk({"type": "ERROR", "object": gone})
            self.wfile.write(b"0\r\n\r\n")
            return
        while (event := api.next_event(path, query.get("labelSelector"), after, 30)) is not None:
            after = event[0]
            if api.fault("EVENT", path) is not None:
                self.wfile.write(b"100\r\n" + json.dumps(event[1]).encode()[:20])
                return
            self._send_chunk(event[1])
        self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, event: Json) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _send(self, code: int, answer: Json, headers: dict[str, str] | None = None) -> None:
        self._write(code, json.dumps(answer).encode(), headers)

    def _write(self, code: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in ({"Content-Type": "application/json", "Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


def status(code: int, reason: str, message: str) -> tuple[int, Json]:
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}


def selects(selector: str | None, metadata: Json) -> bool:
    """Label selectors of the kinds `a=b`, `a in (b,c)` and `a`."""
    labels = metadata.get("labels", {})
    for part in re.findall(r"[^,(]+(?:\([^)]*\))?", selector or ""):
        key, _, values = part.strip().partition(" in ")
        if values:
            if labels.get(key) not in values.strip("()").split(","):
                return False
        elif "=" in key:
            if labels.get(key.partition("=")[0]) != key.partition("=")[2]:
                return False
        elif key not in labels:
            return False
    return True


def merge(thing: Json, change: Json) -> None:
    """A JSON merge patch, in place."""
    for key, value in change.items():
        if isinstance(value, dict):
            merge(thing.setdefault(key, {}), value)
        else:
            thing[key] = value
