"""Files of a cluster: kustomize renders them, Kubernetes and Kueue take them, and they agree with the profiles."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from marin_assets.launch.kubernetes.profile import Pool, Profile
from marin_core.redaction import secrets_of_environment
from tests.deploy.cluster import (
    KUEUE,
    OVERLAYS,
    TREE,
    WITH_DAGSTER,
    Manifest,
    go_module,
    kustomize,
    needs_kubectl,
    of_kind,
    overlay,
    pod_specs,
    require_valid_core,
    require_valid_kueue,
)

pytestmark = needs_kubectl

TEAMS = ("team-a", "team-b")
PROFILES = sorted((TREE / "profiles").glob("*.yaml"))


def profile(name: str) -> Profile:
    path = TREE / "profiles" / f"{name}.yaml"
    return Profile.parse(path.read_text(), str(path))


def spec(objects: list[Manifest], kind: str, name: str) -> Manifest:
    found: Manifest = of_kind(objects, kind)[name]["spec"]
    return found


def shares(objects: list[Manifest], queue: str) -> dict[str, dict[str, int]]:
    """Flavor → resource → what the queue owns of it, in the queue's order."""
    (group,) = spec(objects, "ClusterQueue", queue)["resourceGroups"]
    found = {each["name"]: {of["name"]: of["nominalQuota"] for of in each["resources"]} for each in group["flavors"]}
    assert all(list(each) == group["coveredResources"] for each in found.values())  # Kueue's webhook wants the same order
    return found


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_object_follows_its_schema(name: str) -> None:
    for each in overlay(name):
        (require_valid_kueue if each["apiVersion"] == KUEUE else require_valid_core)(each)


def test_the_schemas_would_notice_a_wrong_field() -> None:
    objects = overlay("gb200-coreweave")
    queue = copy.deepcopy(of_kind(objects, "ClusterQueue")["cq-a"])
    queue["spec"]["queuingStrategy"] = queue["spec"].pop("queueingStrategy")
    with pytest.raises(Exception, match="queuingStrategy"):
        require_valid_kueue(queue)
    webserver = copy.deepcopy(of_kind(objects, "Deployment")["marin/webserver"])
    webserver["spec"]["template"]["spec"]["serviceAcountName"] = "dagster"
    with pytest.raises(AssertionError):
        require_valid_core(webserver)


@pytest.mark.parametrize("name", OVERLAYS)
def test_nothing_refers_to_what_is_not_there(name: str) -> None:
    objects = overlay(name)
    flavors, topologies = of_kind(objects, "ResourceFlavor"), of_kind(objects, "Topology")
    cohorts, queues, accounts = of_kind(objects, "Cohort"), of_kind(objects, "ClusterQueue"), of_kind(objects, "ServiceAccount")
    namespaces = of_kind(objects, "Namespace")
    for queue in queues.values():
        assert queue["spec"]["cohortName"] in cohorts
        assert queue["spec"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] in namespaces
        assert set(shares(objects, queue["metadata"]["name"])) == set(flavors)
    for flavor in flavors.values():
        assert flavor["spec"].get("topologyName") in {None, *topologies}
    for local in of_kind(objects, "LocalQueue").values():
        assert local["spec"]["clusterQueue"] in queues
    roles = of_kind(objects, "Role") | of_kind(objects, "ClusterRole")
    for binding in (of_kind(objects, "RoleBinding") | of_kind(objects, "ClusterRoleBinding")).values():
        space = binding["metadata"].get("namespace")
        assert (f"{space}/" if space else "") + binding["roleRef"]["name"] in roles
        assert all(f"{each['namespace']}/{each['name']}" in accounts for each in binding["subjects"])
    for _, pod in pod_specs(objects):
        assert f"marin/{pod['serviceAccountName']}" in accounts
        for volume in pod["volumes"]:
            assert "configMap" not in volume or f"marin/{volume['configMap']['name']}" in of_kind(objects, "ConfigMap")


@pytest.mark.parametrize("name", OVERLAYS)
def test_flavors_are_the_pools_of_the_profile(name: str) -> None:
    objects, cluster = overlay(name), profile(name)
    assert [pool.name for pool in cluster.pools] == list(shares(objects, "cq-a")), "the queue tries flavors in the profile's order"
    for pool in cluster.pools:
        flavor = spec(objects, "ResourceFlavor", pool.name)
        assert flavor["nodeLabels"] == pool.node_selector
        ours = [each.model_dump(mode="json", exclude_none=True) for each in pool.tolerations]
        assert flavor.get("tolerations", []) == ours
        assert levels(objects, flavor) == wanted_levels(pool)


def levels(objects: list[Manifest], flavor: Manifest) -> list[str]:
    topology = flavor.get("topologyName")
    return [] if topology is None else [each["nodeLabel"] for each in spec(objects, "Topology", topology)["levels"]]


def wanted_levels(pool: Pool) -> list[str]:
    """From the largest group to the node; where JobSet gives slices their node pools, Kueue has no say in it (spec §2.3)."""
    if pool.domain_label is None or pool.layout == "slices":
        return []
    return [*filter(None, (pool.preferred_label, pool.domain_label)), "kubernetes.io/hostname"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_quotas_are_what_the_nodes_can_hold(name: str) -> None:
    objects, cluster = overlay(name), profile(name)
    owned = [shares(objects, queue) for queue in of_kind(objects, "ClusterQueue")]
    for pool in cluster.pools:
        total = {resource: sum(each[pool.name][resource] for each in owned) for resource in owned[0][pool.name]}
        assert total["cpu"] <= pool.usable_nodes * pool.cpus
        devices = {resource: count for resource, count in total.items() if resource != "cpu" and count}
        if pool.resource is None:
            assert devices == {}
            continue
        assert devices == {pool.resource: pool.usable_nodes * pool.devices_per_node}
        for each in owned:
            assert each[pool.name]["cpu"] == each[pool.name][pool.resource] // pool.devices_per_node * pool.cpus, (
                "cores never run out first"
            )


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_profile_finds_its_queue_priorities_and_account(name: str) -> None:
    objects, cluster = overlay(name), profile(name)
    assert f"{cluster.namespace}/{cluster.queue}" in of_kind(objects, "LocalQueue")
    assert f"{cluster.namespace}/{cluster.service_account}" in of_kind(objects, "ServiceAccount")
    if cluster.scratch_claim is not None:
        claim = of_kind(objects, "PersistentVolumeClaim")[f"{cluster.namespace}/{cluster.scratch_claim}"]["spec"]
        assert claim["accessModes"] == ["ReadWriteMany"]
        assert claim["storageClassName"]
    priorities = {each: of["value"] for each, of in of_kind(objects, "WorkloadPriorityClass").items()}
    assert set(cluster.priorities) == set(priorities)
    assert priorities["batch"] < priorities["production"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_the_teams_namespaces_are_kueues(name: str) -> None:
    managed = {each: of["metadata"]["labels"].get("kueue-managed") for each, of in of_kind(overlay(name), "Namespace").items()}
    assert managed == {"marin": None, **dict.fromkeys(TEAMS, "true")}


@pytest.mark.parametrize("name", WITH_DAGSTER)
def test_no_container_is_root_or_can_write_its_image_or_take_a_whole_node(name: str) -> None:
    pods = dict(pod_specs(overlay(name)))
    assert set(pods) == {"webserver", "daemon", "code"}
    for pod in pods.values():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 10001  # that of the images
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        for container in pod["containers"]:
            assert container["securityContext"] == LOCKED
            assert set(container["resources"]["limits"]) == {"cpu", "memory"} == set(container["resources"]["requests"])
            assert "@sha256:" in container["image"]


LOCKED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_secret_lies_in_the_tree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = overlay(name)
    assert of_kind(objects, "Secret") == {}
    data = {key: text for each in of_kind(objects, "ConfigMap").values() for key, text in each["data"].items()}
    literals = [env for _, pod in pod_specs(objects) for container in pod["containers"] for env in container.get("env", [])]
    for key in [*data, *(env["name"] for env in literals)]:
        monkeypatch.setenv(key.replace(".", "_"), f"the value of {key}")
    assert not [of for value, of in secrets_of_environment().items() if value.startswith("the value of ")]
    assert all("password" not in text.replace("the password by", "").replace("PGPASSWORD", "").lower() for text in data.values())


@pytest.mark.parametrize("name", WITH_DAGSTER)
def test_only_the_proxy_reaches_the_webserver(name: str) -> None:
    objects = overlay(name)
    policies = {each: of["spec"] for each, of in of_kind(objects, "NetworkPolicy").items() if each.startswith("marin/")}
    assert policies.pop("marin/nobody") == {"podSelector": {}, "policyTypes": ["Ingress"]}
    opened = {each["podSelector"]["matchLabels"]["app.kubernetes.io/name"]: each["ingress"] for each in policies.values()}
    assert opened["webserver"] == [
        {
            "from": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "marin-proxy"}},
                    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "proxy"}},
                }
            ],
            "ports": [{"port": "http"}],
        }
    ]
    (to_code,) = opened["code"]
    (who,) = to_code["from"][0]["podSelector"]["matchExpressions"]
    assert set(who["values"]) == {"webserver", "daemon"}
    services = of_kind(objects, "Service")
    assert set(services) == {"marin/webserver", "marin/code"}
    assert all("type" not in each["spec"] for each in services.values()), "nothing is served to the outside"


def test_every_profile_is_handed_to_dagster() -> None:
    (given,) = kustomize(TREE / "profiles")
    assert given["data"] == {path.name: path.read_text() for path in PROFILES}


@pytest.mark.parametrize("name", WITH_DAGSTER)
def test_dagster_is_told_its_profile_and_the_images_that_it_needs(name: str) -> None:
    objects = overlay(name)
    data = of_kind(objects, "ConfigMap")["marin/lab"]["data"]
    path = Path(data["MARIN_PROFILE"])
    assert path.name == f"{name}.yaml"
    assert path.name in of_kind(objects, "ConfigMap")["marin/profiles"]["data"]
    assert data["MARIN_LAUNCHER"] == "kubernetes"
    assert profile(name).context is None, "there is no kubeconfig in the pods; their own account is to be used"
    wanted = {"MARIN_IMAGE_LAB", *(f"MARIN_IMAGE_{pool.image.upper()}" for pool in profile(name).pools)}
    assert {each for each in data if each.startswith("MARIN_IMAGE_")} == wanted
    for deployment, pod in pod_specs(objects):
        (container,) = pod["containers"]
        assert container["image"] == data["MARIN_IMAGE_LAB"]
        assert {"configMapRef": {"name": "lab"}} in container["envFrom"]
        mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert deployment != "code" or mounted["profiles"] == str(path.parent)


def installed_kueue(folder: Path) -> tuple[list[Manifest], list[Manifest]]:
    """Kueue's own manifests, and the same with our component over them."""
    release = go_module("sigs.k8s.io/kueue") / "config" / "default"
    stock = kustomize(release)
    shutil.copytree(TREE / "kueue", folder / "kueue")
    (folder / "release.yaml").write_text(yaml.dump_all(stock, Dumper=yaml.CSafeDumper))
    (folder / "kustomization.yaml").write_text("resources: [release.yaml]\ncomponents: [kueue]\n")
    return stock, kustomize(folder)


def test_kueue_has_a_say_in_the_teams_namespaces_only(tmp_path: Path) -> None:
    stock, ours = installed_kueue(tmp_path)
    webhooks = [hook for each in ours if each["kind"].endswith("WebhookConfiguration") for hook in each["webhooks"]]
    assert len(webhooks) > 20
    assert all(hook["namespaceSelector"]["matchLabels"] == {"kueue-managed": "true"} for hook in webhooks)
    assert len(ours) == len(stock), "what only kustomize reads isn't applied"


def test_kueue_is_configured_as_the_launcher_expects(tmp_path: Path) -> None:
    _, ours = installed_kueue(tmp_path)
    data = of_kind(ours, "ConfigMap")["kueue-system/kueue-manager-config"]["data"]
    configuration: dict[str, Any] = yaml.safe_load(data["controller_manager_config.yaml"])
    assert configuration["integrations"]["frameworks"] == ["batch/job", "jobset.x-k8s.io/jobset"]
    assert configuration["managedJobsNamespaceSelector"] == {"matchLabels": {"kueue-managed": "true"}}
    waiting = configuration["waitForPodsReady"]
    assert (waiting["timeout"], waiting["recoveryTimeout"]) == ("15m", "3m")
    assert waiting["requeuingStrategy"]["timestamp"] == "Eviction"
    assert "backoffLimitCount" not in waiting["requeuingStrategy"], "a limit would pause jobs for ever"
    excluded = tuple(configuration["resources"]["excludeResourcePrefixes"])
    for path in PROFILES:
        for pool in Profile.parse(path.read_text(), path.name).pools:
            asked = {"memory", *pool.extra_resources}
            assert all(each.startswith(excluded) for each in asked), f"{path.name}: Kueue has no quota of {asked}, and would never admit it"
    manager = of_kind(ours, "Deployment")["kueue-system/kueue-controller-manager"]
    (container,) = manager["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "8Gi"  # 512 MiB is the release's: marin #7602


def test_kueues_configuration_keeps_to_the_fields_that_it_knows() -> None:
    """Kueue decodes strictly and ends on an unknown field. The names stand as JSON tags in its source."""
    source = "".join(path.read_text() for path in (go_module("sigs.k8s.io/kueue") / "apis" / "config" / "v1beta2").glob("*.go"))
    given = yaml.safe_load((TREE / "kueue" / "controller_manager_config.yaml").read_text())
    free = ("apiVersion", "kind", "matchLabels", "groupKindConcurrency", "leaderElection")  # the last is Kubernetes' own

    def names(value: Any) -> set[str]:
        if not isinstance(value, dict):
            return set()
        return {name for name in value if name not in free}.union(*(names(each) for name, each in value.items() if name not in free))

    missing = {name for name in names(given) if f'json:"{name}' not in source}
    assert missing == set()
