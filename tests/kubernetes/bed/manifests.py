"""JobSet's and Kueue's own manifests, from their modules, and this project's: as they are but for where the controllers answer.

A cluster's API server reaches a webhook through a Service. Here there is no cluster network, so each webhook and each conversion gets the
controller's address instead. Everything else (CRDs with their schemas, roles, which requests a webhook sees) is what a cluster would get.
"""

import base64
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.bed.api import Api, ApiError, Manifest
from tests.kubernetes.bed.programs import wait_until

# Nothing here runs containers, and controllers' certificates are files.
LEFT_OUT = {"Deployment", "Secret", "Service", "APIService"}
# An object can only be made after what it refers to.
ORDER = ["Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Role"]
VISIBILITY = ("v1beta1", "v1beta2")
DEPLOYMENT = Path(__file__).parents[3] / "deploy" / "kubernetes"


def kustomize(kubectl: Path, folder: Path) -> list[Manifest]:
    """Render a kustomize tree, CRDs and their likes first."""
    built = subprocess.run([str(kubectl), "kustomize", str(folder)], check=False, capture_output=True)
    if built.returncode != 0:
        raise RuntimeError(f"kustomize can't render {folder}: {built.stderr.decode()}")
    objects = [document for document in yaml.load_all(built.stdout, Loader=yaml.CSafeLoader) if document]
    return sorted(objects, key=lambda document: ORDER.index(document["kind"]) if document["kind"] in ORDER else len(ORDER))


def with_changes(folder: Path, release: Path, changes: Path) -> Path:
    """Put a release and this project's changes to it together in a folder, as the how-to "Add a cluster" does."""
    folder.mkdir(parents=True, exist_ok=True)
    resources, components = ([os.path.relpath(path.resolve(), folder.resolve())] for path in (release, changes))
    tree = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources, "components": components}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(tree))
    return folder


def served_at(objects: list[Manifest], port: int, authority: Path) -> Iterator[Manifest]:
    """Yield a controller's manifests with webhooks that call 127.0.0.1."""
    bundle = base64.b64encode(authority.read_bytes()).decode()

    def local(client: dict[str, Any]) -> dict[str, Any]:
        return {"url": f"https://127.0.0.1:{port}{client['service'].get('path', '')}", "caBundle": bundle}

    for document in objects:
        if document["kind"] in LEFT_OUT:
            continue
        if document["kind"].endswith("WebhookConfiguration"):
            for webhook in document["webhooks"]:
                webhook["clientConfig"] = local(webhook["clientConfig"])
        conversion = document.get("spec", {}).get("conversion", {}).get("webhook")
        if conversion is not None:
            conversion["clientConfig"] = local(conversion["clientConfig"])
        yield document


def apply_all(api: Api, objects: list[Manifest], manager: str = "bed") -> None:
    """Apply objects in their order, and wait until the API server serves the custom resources among them."""
    for document in objects:
        api.apply(document, manager)
    for name in [document["metadata"]["name"] for document in objects if document["kind"] == "CustomResourceDefinition"]:
        wait_until(f"the API server to serve {name}", lambda name=name: _established(api, name))  # type: ignore[misc]


def apply_when_served(api: Api, document: Manifest, seconds: float = 60.0) -> Manifest:
    """Apply an object whose webhook may not answer yet; it is refused until then."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return api.apply(document)
        except ApiError as error:
            if error.status != 500 or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def visibility_service(port: int) -> list[Manifest]:
    """Kueue's view of its queues as a part of the API server's: requests for the group go to the controller's port on this machine.

    Each version that a release announces has to answer: while one doesn't, no namespace can be deleted.
    """
    namespace = "kueue-system"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "visibility", "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    return [service, *(_visibility(version, {"name": "visibility", "namespace": namespace, "port": port}) for version in VISIBILITY)]


def _visibility(version: str, service: dict[str, Any]) -> Manifest:
    group = "visibility.kueue.x-k8s.io"
    spec = {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": True}
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": {**spec, "service": service},
    }


def _established(api: Api, name: str) -> bool:
    resource = api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", name)
    conditions = resource.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
