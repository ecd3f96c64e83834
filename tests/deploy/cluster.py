"""`deploy/kubernetes` as kustomize renders it, and the schemas of the objects in it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes.client import ApiClient

from tests.kubernetes.controlplane.build import PROGRAMS, BuildError
from tests.launch.kubernetes.test_manifest import strict

type Manifest = dict[str, Any]

PROJECT = Path(__file__).resolve().parents[2]
TREE = PROJECT / "deploy" / "kubernetes"
OVERLAYS = ("gb200-coreweave", "gb200-gke", "gke-tpu", "testbed")
WITH_DAGSTER = tuple(name for name in OVERLAYS if name != "testbed")
KUEUE = "kueue.x-k8s.io/v1beta2"


def _kubectl() -> str | None:
    """From the system, or that of the test bed if it has been built."""
    if found := shutil.which("kubectl"):
        return found
    try:
        built = next(program.binary for program in PROGRAMS if program.name == "kubectl")
    except BuildError:
        return None
    return str(built) if built.exists() else None


KUBECTL = _kubectl()
needs_kubectl = pytest.mark.skipif(
    KUBECTL is None, reason="no kubectl here, of which kustomize is a part; `make test-kubernetes` builds one"
)


def kustomize(folder: Path) -> list[Manifest]:
    """What `kubectl apply -k` would apply."""
    done = subprocess.run([str(KUBECTL), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]


@cache
def _overlay(name: str) -> str:
    return json.dumps(kustomize(TREE / "overlays" / name))


def overlay(name: str) -> list[Manifest]:
    objects: list[Manifest] = json.loads(_overlay(name))
    return objects


def of_kind(objects: Sequence[Manifest], kind: str) -> dict[str, Manifest]:
    """Name → object; the namespace stands before the name where there is one."""
    found = [each for each in objects if each["kind"] == kind]
    named = {"/".join(filter(None, (each["metadata"].get("namespace"), each["metadata"]["name"]))): each for each in found}
    assert len(named) == len(found)
    return named


def pod_specs(objects: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for each in objects:
        if each["kind"] == "Deployment":
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def go_module(name: str) -> Path:
    """The newest release of a module in Go's cache; the test is skipped where there is none."""
    cached = Path(os.environ.get("GOMODCACHE") or Path(os.environ.get("GOPATH", Path.home() / "go")) / "pkg" / "mod")
    found = sorted(cached.glob(f"{name}@*"), key=lambda path: [int(part) for part in path.name.split("@v")[1].split("-")[0].split(".")])
    if not found:
        pytest.skip(f"{name} is not in the Go module cache ({cached}); `make test-kubernetes` downloads it")
    return found[-1]


@cache
def _kueue_schemas() -> Mapping[str, Any]:
    schemas = {}
    for path in (go_module("sigs.k8s.io/kueue") / "config" / "components" / "crd" / "bases").glob("*.yaml"):
        crd = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        for version in crd["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            schema["properties"]["metadata"] = {"type": "object"}
            schemas[f"{crd['spec']['group']}/{version['name']} {crd['spec']['names']['kind']}"] = strict(schema)
    return schemas


def require_valid_kueue(manifest: Manifest) -> None:
    """Validate against Kueue's own schema, made to refuse fields that the API server would drop."""
    jsonschema.Draft202012Validator(_kueue_schemas()[f"{manifest['apiVersion']} {manifest['kind']}"]).validate(manifest)


def require_valid_core(manifest: Manifest) -> None:
    """Read an object of Kubernetes itself as the Python client's model and write it again: a wrong field is lost, a missing one raises."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    group = "".join(part.capitalize() for part in group.removesuffix(".k8s.io").split(".") if part)
    names = (f"{version.capitalize()}{manifest['kind']}", f"{group}{version.capitalize()}{manifest['kind']}")
    client = ApiClient()
    import kubernetes.client.models as models

    model = next(getattr(models, name) for name in names if hasattr(models, name))
    read = client._ApiClient__deserialize(manifest, model)
    assert client.sanitize_for_serialization(read) == manifest
