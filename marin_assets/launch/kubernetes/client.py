"""The Kubernetes API as this project uses it: JSON in, JSON out, and every answer judged in one place. Only here `kubernetes` is imported.

The typed models of the Python client are left aside: pods of a thousand jobs as models cost seconds of processor time, and what reads
them (`reduce`) is pure and takes the JSON itself. Its `Watch` is left aside too: it reopens for ever and hides a 410 (spec §1.8).
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from marin_core.errors import ConfigError, InfrastructureError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

type Json = dict[str, Any]

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""An answer that takes longer is none: a half-open connection would hang otherwise."""

WATCH_SECONDS = (240, 300)
"""How long the server keeps a watch open; random, so that a thousand of them don't end together."""

WATCH_SLACK_SECONDS = 15.0

LOG_LIMIT_BYTES = 200_000

FORBIDDEN_SECONDS = 60.0
"""How long the API server must deny a right until that is believed: when it has just started it knows no roles yet, and denies all
(kubernetes #121635)."""

AUTHENTICATION = ["BearerToken"]


@dataclass(frozen=True)
class Kind:
    """A resource type: its API group and version (`""` = the core's), and its name in paths."""

    group: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/apis/{self.group}" if "/" in self.group else f"/api/{self.group}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace is not None else ""
        return f"{root}{inside}/{self.plural}" + "".join(f"/{part}" for part in (name, subresource) if part is not None)


JOBSETS = Kind("jobset.x-k8s.io/v1alpha2", "jobsets")
WORKLOADS = Kind("kueue.x-k8s.io/v1beta2", "workloads")
LOCAL_QUEUES = Kind("kueue.x-k8s.io/v1beta2", "localqueues")
PRIORITY_CLASSES = Kind("kueue.x-k8s.io/v1beta2", "workloadpriorityclasses", namespaced=False)
PENDING_WORKLOADS = Kind("visibility.kueue.x-k8s.io/v1beta2", "clusterqueues", namespaced=False)
JOBS = Kind("batch/v1", "jobs")
PODS = Kind("v1", "pods")
NAMESPACES = Kind("v1", "namespaces", namespaced=False)
COMPUTE_DOMAINS = Kind("resource.nvidia.com/v1beta1", "computedomains")


class ApiError(InfrastructureError):
    """The API server gave no answer, or none that says anything about the request: it may say something else later.

    Attributes:
        status: of HTTP; None if no answer came.
        retry_after_seconds: how long the server asks to wait.
    """

    def __init__(self, message: str, status: int | None, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, advice="Nothing: it is asked again. If this lasts, look at the cluster's API server.")
        self.status = status
        self.retry_after_seconds = retry_after_seconds


class NotFoundError(ApiError):
    """404. One of these proves nothing: whoever acts upon it asks twice (spec §1.8)."""


class AlreadyThereError(ApiError):
    """409 `AlreadyExists`: an object of this name is there, or is being deleted."""


class ConflictError(ApiError):
    """409 `Conflict`: the object is another one by now, or has changed."""


class ExpiredError(ApiError):
    """410, or 504 "Too large resource version" after the server was restored: drop the version, list again."""


class RefusedError(ConfigError):
    """The cluster says no, and will say no again: a wrong field, a webhook's denial, a missing right."""

    def __init__(self, message: str, advice: str, status: int) -> None:
        super().__init__(message, advice=advice)
        self.status = status


class ForbiddenError(RefusedError):
    """403 for want of a right."""


class Cluster:
    """One connection to a cluster's API, shared by all threads of a process; reconnects once when its credentials aren't taken any more.

    Args:
        connect: makes a client with fresh credentials; not called before the first request.
        clock: seconds that only go forwards.
    """

    def __init__(self, connect: "Callable[[], ApiClient]", clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._client: ApiClient | None = None
        self._forbidden: dict[str, tuple[float, float]] = {}
        self._lock = Lock()

    @classmethod
    def of_context(cls, context: str | None) -> Self:
        """The cluster of a kubeconfig's context; None = that of the pod this runs in, or the current context.

        The names of the files are those that kubectl reads (KUBECONFIG).
        """
        return cls(lambda: _connect(context))

    def get(self, path: str) -> Json:
        """An object as it is now: a consistent read.

        Raises:
            NotFoundError: there is none, as it seems.
        """
        return self._request("GET", path)

    def list(self, path: str, selector: str | None = None) -> Json:
        """Objects by label, from the server's memory: cheap, and at most a moment old."""
        query = [("resourceVersion", "0")] + ([("labelSelector", selector)] if selector else [])
        listed = self._request("GET", path, query)
        for each in listed.get("items", ()):  # who has set which field is half of an object, and of a launcher's memory
            each["metadata"].pop("managedFields", None)
        return listed

    def create(self, path: str, manifest: Json) -> Json:
        """Create an object.

        Raises:
            AlreadyThereError: one of this name is there.
            RefusedError: it won't be taken.
        """
        return self._request("POST", path, body=manifest)

    def delete(self, path: str, uid: str) -> None:
        """Begin to delete an object and, before it, all that it owns; if it is still the one with this uid.

        Raises:
            NotFoundError: it is gone.
            ConflictError: another one has its name.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        self._request("DELETE", path, body=options)

    def patch(self, path: str, change: Json) -> Json:
        """Merge a change into an object."""
        return self._request("PATCH", path, body=change, content_type="application/merge-patch+json")

    def text(self, path: str, query: Sequence[tuple[str, str]] = ()) -> str:
        """An answer that is no JSON, such as a pod's log."""
        response = self._send("GET", path, query, None, "application/json", stream=False, read_seconds=READ_SECONDS)
        return bytes(response.data).decode(errors="replace")

    def watch(self, path: str, selector: str | None, version: str) -> Iterator[str]:
        """Versions of events on objects as they happen, bookmarks included, until the server or the network ends it.

        An event only says that it is worth looking; nothing rests on its coming, so a cut connection is a quiet end.

        Raises:
            ExpiredError: the server doesn't know this version any more.
        """
        seconds = random.randint(*WATCH_SECONDS)  # noqa: S311
        query = [("watch", "true"), ("resourceVersion", version), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds))]
        query += [("labelSelector", selector)] if selector else []
        read_seconds = seconds + WATCH_SLACK_SECONDS
        response = self._send("GET", path, query, None, "application/json", stream=True, read_seconds=read_seconds)
        try:
            yield from _events(response)
        finally:
            with suppress(Exception):  # a connection that was cut can't be given back
                response.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        response = self._send(method, path, query, body, content_type, stream=False, read_seconds=READ_SECONDS)
        try:
            answer: Json = json.loads(response.data)
        except ValueError as error:
            raise ApiError(f"{method} {path}: the answer is no JSON", None) from error
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: Json | None,
        content_type: str,
        *,
        stream: bool,
        read_seconds: float,
    ) -> Any:
        """The response of one request.

        Raises:
            ApiError, RefusedError: see `judge`.
        """
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config.config_exception import ConfigException
        from urllib3.exceptions import HTTPError

        for last in (False, True):
            try:
                client = self._current()
                headers = {"Accept": "application/json", "Content-Type": content_type, **client.default_headers}
                parameters = list(query)
                client.update_params_for_auth(headers, parameters, AUTHENTICATION)
                answer = client.rest_client.request(
                    method,
                    client.configuration.host + path,
                    query_params=parameters,
                    headers=headers,
                    body=body,
                    _preload_content=not stream,
                    _request_timeout=(CONNECT_SECONDS, read_seconds),
                )
            except ApiException as error:
                if error.status == 401 and not last:
                    self._forget(client)
                    continue
                verdict = judge(f"{method} {path}", error.status or None, error.body or error.reason, error.headers)
                raise (self._unless_it_lasts(f"{method} {path}", verdict) if isinstance(verdict, ForbiddenError) else verdict) from error
            except (HTTPError, OSError) as error:
                raise ApiError(f"{method} {path}: no answer: {type(error).__name__}: {error}", None) from error
            except ConfigException as error:
                raise RefusedError(
                    f"the cluster's credentials can't be loaded: {error}", "Check KUBECONFIG and the profile's context.", 401
                ) from error
            else:
                self._forbidden.pop(f"{method} {path}", None)
                return answer
        raise AssertionError("unreachable")

    def _unless_it_lasts(self, request: str, verdict: ForbiddenError) -> ApiError | ForbiddenError:
        """What to make of a right that is denied: a refusal, if each answer to this request was one for a while."""
        now = self._clock()
        with self._lock:
            since, last = self._forbidden.get(request, (now, now))
            since = since if now - last <= FORBIDDEN_SECONDS else now
            self._forbidden[request] = since, now
        return verdict if now - since >= FORBIDDEN_SECONDS else ApiError(verdict.message, verdict.status)

    def _current(self) -> "ApiClient":
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _forget(self, client: "ApiClient") -> None:
        """Connect anew, unless another thread has done so meanwhile."""
        with self._lock:
            if self._client is client:
                self._client = None


def quantity(text: str | int | float) -> Decimal:
    """The number that Kubernetes writes as `800Gi` or `500m`."""
    from kubernetes.utils.quantity import parse_quantity

    number: Decimal = parse_quantity(text)
    return number


def _connect(context: str | None) -> "ApiClient":
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    configuration = client.Configuration()
    try:
        if context is not None:
            raise ConfigException("a context is one of a kubeconfig")
        config.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        config.load_kube_config(context=context, client_configuration=configuration, persist_config=False)
    configuration.retries = False  # whoever asks knows better what is safe to ask again, and for how long
    return client.ApiClient(configuration)


def judge(request: str, status: int | None, body: bytes | str | None, headers: Mapping[str, str] | None) -> ApiError | RefusedError:
    """What an answer means (spec §1.3, §1.8): whether to ask again, look again, list again, or to tell a person.

    Args:
        request: method and path, for the message.
        status: of HTTP; None if the answer was no HTTP.
        body: a Kubernetes `Status`, or anything that a proxy says.
    """
    reason, said = _status(body)
    message = f"{request}: {status} {said}"
    retry_after = _seconds((headers or {}).get("Retry-After"))
    if status == 404:
        return NotFoundError(message, status)
    if status == 409 and reason == "AlreadyExists":
        return AlreadyThereError(message, status)
    if status == 409:
        return ConflictError(message, status)
    if status == 410 or (status == 504 and "Too large resource version" in said):
        return ExpiredError(message, status)
    if status == 403 and "exceeded quota" in said:
        return ApiError(message, status, retry_after)
    if status == 401:
        return ApiError(f"{message}; fresh credentials aren't taken either", status)
    if status == 403 and "denied the request" not in said:
        return ForbiddenError(message, "Give the launcher the rights of deploy/kubernetes.", status)
    if status is not None and 400 <= status < 500 and status not in (408, 429):
        return RefusedError(message, "Correct what the message names.", status)
    return ApiError(message, status, retry_after)


def _status(body: bytes | str | None) -> tuple[str, str]:
    """Reason and message of a `Status`; of anything else, its beginning."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    with suppress(ValueError):
        status = json.loads(text)
        if isinstance(status, dict):
            return str(status.get("reason", "")), str(status.get("message", "") or text)
    return "", text[:500]


def _seconds(text: str | None) -> float | None:
    """Of a `Retry-After`; Kubernetes writes whole seconds."""
    return float(text) if text is not None and text.isdigit() else None


def _events(response: Any) -> Iterator[str]:
    from urllib3.exceptions import HTTPError

    try:
        for line in response:
            try:
                event = json.loads(line)
                kind, thing = event["type"], event["object"]
            except (ValueError, KeyError, TypeError):
                return  # half an event: the connection was cut
            if kind == "ERROR":
                error = judge("watch", thing.get("code"), json.dumps(thing), None)
                raise error
            yield thing["metadata"]["resourceVersion"]
    except (HTTPError, OSError):
        return
