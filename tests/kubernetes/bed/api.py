"""The API server as plain JSON: what the bed and its tests need, without models that change with each client release."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import urllib3

Manifest = dict[str, Any]

# Where objects live: plural name, and whether they belong to a namespace.
KINDS = {
    "APIService": ("apiservices", False),
    "ClusterQueue": ("clusterqueues", False),
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
    "Cohort": ("cohorts", False),
    "ConfigMap": ("configmaps", True),
    "CustomResourceDefinition": ("customresourcedefinitions", False),
    "Event": ("events", True),
    "Job": ("jobs", True),
    "JobSet": ("jobsets", True),
    "Lease": ("leases", True),
    "LocalQueue": ("localqueues", True),
    "MutatingWebhookConfiguration": ("mutatingwebhookconfigurations", False),
    "Namespace": ("namespaces", False),
    "NetworkPolicy": ("networkpolicies", True),
    "Node": ("nodes", False),
    "PersistentVolumeClaim": ("persistentvolumeclaims", True),
    "Pod": ("pods", True),
    "ResourceFlavor": ("resourceflavors", False),
    "Role": ("roles", True),
    "RoleBinding": ("rolebindings", True),
    "Secret": ("secrets", True),
    "Service": ("services", True),
    "ServiceAccount": ("serviceaccounts", True),
    "Topology": ("topologies", False),
    "ValidatingWebhookConfiguration": ("validatingwebhookconfigurations", False),
    "Workload": ("workloads", True),
    "WorkloadPriorityClass": ("workloadpriorityclasses", False),
}
JOBSET = "jobset.x-k8s.io/v1alpha2"
KUEUE = "kueue.x-k8s.io/v1beta2"
WATCH_SECONDS = 240


class ApiError(RuntimeError):
    """The API server refused. `status` is HTTP's code, `reason` Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Api:
    """One user's view of the API server. Safe to use from several threads.

    Args:
        url: of the API server.
        authority: certificate of the authority that signed the server's.
        token: bearer token of the user.
    """

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self.url = url
        self.stopped = threading.Event()
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        # No retries of its own: what is tried again is decided where the meaning is known.
        self._pool = urllib3.PoolManager(
            ca_certs=str(authority), maxsize=16, block=True, retries=False, timeout=urllib3.Timeout(connect=5, read=60)
        )

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Manifest:
        """Ask once and return the answer. Raises `ApiError` for an answer over 299, `urllib3.exceptions.HTTPError` for none."""
        data = None if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, self.url + path, body=data, headers={**self._headers, "Content-Type": content_type})
        if answer.status > 299:
            raise _error(answer.status, answer.data)
        if not answer.headers.get("Content-Type", "").startswith("application/json"):
            return {"text": answer.data.decode(errors="replace")}  # a log
        found: Manifest = json.loads(answer.data)
        return found

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Manifest:
        return self.request("GET", path_of(api_version, kind, namespace, name))

    def find(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Manifest | None:
        """Return the object, or None if there is none."""
        try:
            return self.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str | None = None, **query: str) -> list[Manifest]:
        """List objects; `labelSelector` and `fieldSelector` narrow it down."""
        path = path_of(api_version, kind, namespace)
        items: list[Manifest] = self.request("GET", f"{path}?{urlencode(query)}")["items"]
        return items

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        path = path_of(manifest["apiVersion"], manifest["kind"], manifest["metadata"].get("namespace"))
        return self.request("POST", path + ("?dryRun=All" if dry_run else ""), manifest)

    def apply(self, manifest: Manifest, manager: str = "bed") -> Manifest:
        """Make the object be as the manifest says, whoever owned its fields before (server-side apply).

        Args:
            manager: in whose name. What it said before, and says no more, goes.
        """
        metadata = manifest["metadata"]
        path = path_of(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])
        return self.request("PATCH", f"{path}?fieldManager={manager}&force=true", manifest, "application/apply-patch+yaml")

    def merge(
        self, api_version: str, kind: str, name: str, change: Manifest, namespace: str | None = None, *, part: Literal["", "/status"] = ""
    ) -> Manifest:
        """Change some fields of an object, or of its status (JSON merge patch)."""
        path = path_of(api_version, kind, namespace, name) + part
        return self.request("PATCH", path, change, "application/merge-patch+json")

    def delete(
        self, api_version: str, kind: str, name: str, namespace: str | None = None, *, propagation: str = "Foreground"
    ) -> Manifest | None:
        """Begin to delete an object; None if there is none."""
        try:
            return self.request("DELETE", path_of(api_version, kind, namespace, name), {"propagationPolicy": propagation})
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def watch(self, api_version: str, kind: str, resource_version: str) -> Iterator[tuple[str, Manifest]]:
        """Yield (ADDED, MODIFIED, DELETED or BOOKMARK; object) of all namespaces until the server ends the stream."""
        query = {"watch": "1", "resourceVersion": resource_version, "timeoutSeconds": str(WATCH_SECONDS), "allowWatchBookmarks": "true"}
        address = f"{self.url}{path_of(api_version, kind)}?{urlencode(query)}"
        answer = self._pool.request(
            "GET", address, headers=self._headers, preload_content=False, timeout=urllib3.Timeout(connect=5, read=WATCH_SECONDS + 15)
        )
        try:
            if answer.status > 299:
                raise _error(answer.status, answer.data)
            waiting = b""
            for part in answer.stream(65536):
                *lines, waiting = (waiting + part).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(int(event["object"].get("code", 500)), line)
                    yield event["type"], event["object"]
        finally:
            answer.close()


def path_of(api_version: str, kind: str, namespace: str | None = None, name: str | None = None) -> str:
    """Return the path of an object, or of all of a kind. Kinds are those of `KINDS`."""
    plural, namespaced = KINDS[kind]
    parts = ["api" if api_version == "v1" else "apis", api_version]
    if namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(plural)
    if name is not None:
        parts.append(name)
    return "/" + "/".join(parts)


def _error(status: int, data: bytes) -> ApiError:
    try:
        answer = json.loads(data)
        answer = answer.get("object", answer)
        return ApiError(status, answer.get("reason", ""), answer.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", data.decode(errors="replace")[:2000])
