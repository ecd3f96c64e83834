"""The real webhooks judge what the launcher renders, for each profile and the shapes that it allows."""

import pytest
from kubernetes.utils.quantity import parse_quantity

from marin_assets.launch.kubernetes.placement import legal_shape
from marin_assets.launch.kubernetes.profile import CPU, Pool, Profile
from marin_core.artifact.step import Accelerators, Resources
from tests.kubernetes.bed.api import KUEUE, ApiError, Manifest
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.nodes import NVLINK_DOMAIN, racks
from tests.kubernetes.jobs import JOB_INDEX, POD_INDEX, PROFILES, Submitted, bed_profile, domains, gpus, manifest, pod_template, profile

pytestmark = pytest.mark.kubernetes

NAMES = sorted(path.stem for path in PROFILES.glob("*.yaml"))


def shapes(pool: Pool) -> list[Resources]:
    """The smallest, the largest, and some job between that a pool can hold."""
    if pool.kind == CPU:
        return [Resources(cpus=2 * processes, processes=processes, save_seconds=1) for processes in (1, 3)]
    legal = [nodes for nodes in range(1, pool.usable_nodes + 1) if legal_shape(pool, nodes)]
    chosen = sorted({legal[0], legal[len(legal) // 2], legal[-1]})
    return [Resources(accelerators=Accelerators(kinds=(pool.kind,), nodes=nodes), save_seconds=1) for nodes in chosen]


@pytest.mark.parametrize("name", NAMES)
def test_every_shape_of_a_profile_is_accepted(bed: Bed, name: str) -> None:
    """With a server-side dry run: schema, defaults, and the webhooks of JobSet and Kueue."""
    on = profile(name).model_copy(update={"namespace": "team-a"})
    for pool in on.pools:
        for number, resources in enumerate(shapes(pool)):
            accepted = bed.api.create(manifest(f"dry-{number}", resources, act=None, on=on), dry_run=True)
            assert accepted["spec"]["suspend"] is on.kueue


@pytest.mark.parametrize("name", NAMES)
def test_pods_pass_the_pod_security_of_a_teams_namespace_unless_they_use_their_host(bed: Bed, name: str) -> None:
    """A JobSet whose pods would be refused is accepted, and then has none. Pools with the host's network or files need another level."""
    on = profile(name).model_copy(update={"namespace": "team-a"})
    for pool in on.pools:
        template = pod_template(manifest("dry-pod", shapes(pool)[0], act=None, on=on))
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": "dry", "namespace": "team-a"},
            "spec": template["spec"],
        }
        if pool.host_network or pool.host_paths:
            with pytest.raises(ApiError, match="violates PodSecurity"):
                bed.api.create(pod, dry_run=True)
        else:
            bed.api.create(pod, dry_run=True)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda jobset: jobset["spec"]["failurePolicy"]["rules"][0].update(name="never-retry"), "name"),
        (lambda jobset: jobset["metadata"].update(name="m-" + "x" * 58), "63 characters"),
        (lambda jobset: jobset["metadata"].update(name="1-digit"), "DNS-1035"),
    ],
)
def test_the_webhooks_do_refuse(bed: Bed, spoil: object, complaint: str) -> None:
    """Else the test above would show nothing."""
    jobset = manifest("spoiled", gpus(2))
    assert callable(spoil)
    spoil(jobset)
    with pytest.raises(ApiError, match=complaint):
        bed.api.create(jobset, dry_run=True)


def test_the_hero_job_fills_eleven_racks_with_the_right_ranks(bed: Bed) -> None:
    """176 pods, 704 GPUs: 16 to a rack, and the ranks of a rack follow each other."""
    more = racks(11)[36:]
    bed.kubelet.add(more)
    small = quotas(bed, gpus=704, cores=704 * 32)
    try:
        hero = Submitted(bed, manifest("hero", gpus(176), on=eleven_racks()))
        pods = hero.wait_running(240)
        racks_of_jobs = domains(bed, pods)
        assert len(racks_of_jobs) == 11
        assert all(len(found) == 1 for found in racks_of_jobs.values())
        assert len({next(iter(found)) for found in racks_of_jobs.values()}) == 11
        ranks = {rank(pod): rack_of(bed, pod) for pod in pods}
        assert sorted(ranks) == list(range(176))
        assert all(len({ranks[16 * job + pod] for pod in range(16)}) == 1 for job in range(11))
    finally:
        bed.clear()
        bed.kubelet.remove(machine.name for machine in more)
        quotas(bed, **small)


def quotas(bed: Bed, gpus: int, cores: int) -> dict[str, int]:
    """Set team a's share of GB200 nodes, and return what it was."""
    spec = bed.api.get(KUEUE, "ClusterQueue", "cq-a")["spec"]
    flavor = next(flavor for flavor in spec["resourceGroups"][0]["flavors"] if flavor["name"] == "gb200")
    shares = {share["name"]: share for share in flavor["resources"]}
    before = {"gpus": int(shares["nvidia.com/gpu"]["nominalQuota"]), "cores": int(parse_quantity(shares["cpu"]["nominalQuota"]))}
    shares["nvidia.com/gpu"]["nominalQuota"], shares["cpu"]["nominalQuota"] = str(gpus), str(cores)
    bed.api.merge(KUEUE, "ClusterQueue", "cq-a", {"spec": {"resourceGroups": spec["resourceGroups"]}})
    return before


def eleven_racks() -> Profile:
    on = bed_profile()
    gb200 = on.pool("gb200").model_copy(update={"nodes": 11 * 18})
    return on.model_copy(update={"pools": (gb200, *on.pools[1:])})


def rank(pod: Manifest) -> int:
    """Process id, by the formula of spec/kubernetes.md §2.5."""
    labels = pod["metadata"]["labels"]
    return int(labels[JOB_INDEX]) * 16 + int(labels[POD_INDEX])


def rack_of(bed: Bed, pod: Manifest) -> str:
    node = bed.api.get("v1", "Node", pod["spec"]["nodeName"])
    return str(node["metadata"]["labels"][NVLINK_DOMAIN])
