"""Rights: what the launcher and Dagster ask of the API server is granted, and nothing else is."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import dagster_k8s.client
import pytest

from marin_assets.launch.kubernetes import client
from marin_assets.launch.kubernetes.client import Kind
from marin_assets.launch.kubernetes.profile import Profile
from tests.deploy.cluster import OVERLAYS, TREE, WITH_DAGSTER, Manifest, needs_kubectl, of_kind, overlay

pytestmark = needs_kubectl

type Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""

LAUNCHER = Path(client.__file__).parent
VERBS = {"get": "get", "text": "get", "list": "list", "watch": "watch", "create": "create", "patch": "patch", "delete": "delete"}
"""Methods of `Cluster` → the verbs by which the API server knows them."""


def granted(objects: Sequence[Manifest], account: str) -> set[Right]:
    """What the bindings give an account, be it in one namespace or everywhere."""
    roles = of_kind(objects, "Role") | of_kind(objects, "ClusterRole")
    found: set[Right] = set()
    for binding in (of_kind(objects, "RoleBinding") | of_kind(objects, "ClusterRoleBinding")).values():
        if any(f"{each['namespace']}/{each['name']}" == account for each in binding["subjects"]):
            space = binding["metadata"].get("namespace")
            rules = roles[(f"{space}/" if space else "") + binding["roleRef"]["name"]]["rules"]
            found |= {
                (group, what, verb) for rule in rules for group in rule["apiGroups"] for what in rule["resources"] for verb in rule["verbs"]
            }
    return found


USED: Mapping[Right, str] = {
    ("jobset.x-k8s.io", "jobsets", "get"): "submission",
    ("jobset.x-k8s.io", "jobsets", "list"): "view",
    ("jobset.x-k8s.io", "jobsets", "watch"): "view",
    ("jobset.x-k8s.io", "jobsets", "create"): "submission",
    ("jobset.x-k8s.io", "jobsets", "delete"): "launcher",
    ("kueue.x-k8s.io", "workloads", "list"): "view",
    ("kueue.x-k8s.io", "workloads", "patch"): "launcher",
    ("kueue.x-k8s.io", "localqueues", "get"): "queue",
    ("kueue.x-k8s.io", "workloadpriorityclasses", "get"): "queue",
    ("visibility.kueue.x-k8s.io", "clusterqueues/pendingworkloads", "get"): "queue",
    ("batch", "jobs", "list"): "view",
    ("", "pods", "list"): "view",
    ("", "pods/log", "get"): "launcher",
    ("", "namespaces", "get"): "queue",
}
"""What the launcher asks for, and a module of `marin_assets.launch.kubernetes` that does."""

USED_FOR_SHARED_MEMORY: Mapping[Right, str] = {
    ("resource.nvidia.com", "computedomains", "create"): "submission",
    ("resource.nvidia.com", "computedomains", "list"): "janitor",
    ("resource.nvidia.com", "computedomains", "delete"): "janitor",
}


def asked(source: str) -> Iterator[Right]:
    """Requests that can be read off a module: calls of a `Cluster`'s methods with the path of a `Kind`, or a name that was given one.

    Those that pass the kind along as an argument are not seen.
    """
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        paths: dict[str, list[tuple[str, str]]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                paths.setdefault(node.targets[0].id, []).extend(resources(node.value))
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VERBS and node.args:
                path = node.args[0]
                for group, resource in paths.get(path.id, []) if isinstance(path, ast.Name) else resources(path):
                    yield group, resource, VERBS[node.func.attr]


def resources(value: ast.expr) -> Iterator[tuple[str, str]]:
    """API group and resource of every `KIND.path(namespace, name, subresource)` within an expression."""
    for node in ast.walk(value):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "path"
            and isinstance(node.func.value, ast.Name)
        ):
            kind = getattr(client, node.func.value.id, None)
            if isinstance(kind, Kind):
                last = [*node.args[2:], *(each.value for each in node.keywords if each.arg == "subresource")]
                below = [f"/{each.value}" for each in last if isinstance(each, ast.Constant) and isinstance(each.value, str)]
                yield kind.group.rpartition("/")[0], kind.plural + "".join(below)


def test_requests_are_found_in_source() -> None:
    source = """
def look(self):
    self.cluster.get(JOBSETS.path(namespace, name))
    path = PODS.path(namespace, name, "log")
    return self.cluster.text(path)
"""
    assert set(asked(source)) == {("jobset.x-k8s.io", "jobsets", "get"), ("", "pods/log", "get")}


def test_the_table_has_every_request_of_the_launcher() -> None:
    found = {right: path.name for path in LAUNCHER.glob("*.py") for right in asked(path.read_text())}
    table = {**USED, **USED_FOR_SHARED_MEMORY}
    assert {right: where for right, where in found.items() if right not in table} == {}
    kinds = {(kind.group.rpartition("/")[0], kind.plural): name for name, kind in vars(client).items() if isinstance(kind, Kind)}
    for (group, resource, _), module in table.items():
        assert kinds[group, resource.split("/")[0]] in (LAUNCHER / f"{module}.py").read_text(), (resource, module)
    assert {(group, resource.split("/")[0]) for group, resource, _ in table} == set(kinds), "a kind without a right"


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_launcher_has_the_rights_that_it_uses_and_no_other(name: str) -> None:
    profile = Profile.parse((TREE / "profiles" / f"{name}.yaml").read_text(), name)
    shared_memory = any(pool.imex == "per_jobset" for pool in profile.pools)
    assert granted(overlay(name), "marin/launcher") == {*USED, *(USED_FOR_SHARED_MEMORY if shared_memory else ())}


def test_dagster_has_the_rights_that_its_run_launcher_uses_and_no_other() -> None:
    """The methods of dagster_k8s' client that K8sRunLauncher calls, and those that they call."""
    source = inspect.getsource(dagster_k8s.client.DagsterKubernetesClient)
    methods = {each.name: ast.unparse(each) for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)}
    launcher = inspect.getsource(__import__("dagster_k8s.launcher").launcher)
    reached: set[str] = set()
    found = set(re.findall(r"_api_client\.(\w+)\(", launcher))
    while found - reached:
        reached |= found
        found = {name for each in reached for name in re.findall(r"self\.(\w+)\(", methods[each]) if name in methods}
    used = {right for each in reached for right in requests_of_models(methods[each])}
    for cluster in WITH_DAGSTER:
        assert granted(overlay(cluster), "marin/dagster") == used


def requests_of_models(source: str) -> Iterator[Right]:
    """`core_api.read_namespaced_pod_log(` → get pods/log."""
    words = {"read": "get", "list": "list", "create": "create", "delete": "delete", "patch": "patch"}
    for group, verb, resource, subresource in re.findall(r"(core|batch)_api\.(\w+?)_namespaced_(pod|job|event)(_\w+)?\(", source):
        yield "" if group == "core" else "batch", f"{resource}s{subresource.replace('_', '/')}", words[verb]


@pytest.mark.parametrize("name", OVERLAYS)
def test_nobody_reads_secrets_makes_pods_or_opens_a_shell(name: str) -> None:
    objects = overlay(name)
    for account in of_kind(objects, "ServiceAccount"):
        for group, resource, verb in granted(objects, account):
            assert "*" not in (group, resource, verb)
            assert resource not in (
                "secrets",
                "configmaps",
                "serviceaccounts",
                "pods/exec",
                "pods/attach",
                "pods/portforward",
                "nodes/proxy",
            )
            assert (resource, verb) not in (("pods", "create"), ("pods", "patch"), ("pods", "update"))


@pytest.mark.parametrize("name", OVERLAYS)
def test_jobs_have_no_rights_in_the_cluster(name: str) -> None:
    objects = overlay(name)
    for team in ("team-a", "team-b"):
        assert granted(objects, f"{team}/marin-job") == set()
        assert of_kind(objects, "ServiceAccount")[f"{team}/marin-job"]["automountServiceAccountToken"] is False
