"""From a profile, a request and an identity to the objects that are given to the API server. Pure: equal arguments, equal text.

What each field is for, and what the controllers did with it, is in spec/kubernetes.md §2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marin_assets.launch.kubernetes.names import (
    ADDRESS_ANNOTATION,
    ATTEMPT_LABEL,
    IMAGE_ANNOTATION,
    JOB_INDEX,
    KEY_LABEL,
    MANAGED_LABEL,
    POD_INDEX,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    RESTART,
    RUN_ANNOTATION,
    SPEC_ANNOTATION,
    JobName,
    coordinator,
    require_legal,
)
from marin_assets.launch.kubernetes.placement import Request
from marin_assets.launch.kubernetes.profile import Pool, Profile, require_digest
from marin_core.errors import ExitCode

type Manifest = dict[str, Any]

CONTAINER = "job"
"""Name of the one container of a pod; exit codes are judged by it."""

APPLICATION_RESTARTS = {"train": 3}
"""Restarts within an attempt after a failure of the job itself, by job: a training goes on from its checkpoint. Others: none."""

KEEP_SECONDS = 86_400
"""From a JobSet's end until the cluster deletes it, should the janitor not have come before (spec §1.7)."""

IMAGE_GROUP = 10001
"""Of the images' user (deploy/docker)."""

NODE_LOSS_SECONDS = 60
"""From the silence of a node until its pods are given up; Kubernetes waits for 300 s by itself (spec §2.1)."""

_NEVER_AGAIN = [int(ExitCode.BAD_CONFIG), int(ExitCode.BAD_DATA)]
_PASSING = [int(ExitCode.TRY_AGAIN), int(ExitCode.PREEMPTED)]


@dataclass(frozen=True)
class Identity:
    """Which job this is, for labels, annotations and environment.

    Attributes:
        name: of the JobSet, as `contract.job_name` makes it.
        job: module of `marin_jobs`.
        address: URL of the artifact.
        folder: URL of the job's folder, which holds its spec as `spec.json`.
        spec_sha256: of the spec's text; an equal name with another one is another job.
        image: reference by digest.
        dagster_run_id: run that submitted it.
        environment: further variables of every pod, such as the bootstrap of Dagster Pipes.
    """

    name: str
    job: str
    address: str
    folder: str
    spec_sha256: str
    image: str
    dagster_run_id: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def render(profile: Profile, request: Request, identity: Identity) -> list[Manifest]:
    """The JobSet, first, and what it owns besides (see `owned`).

    Raises:
        ConfigError: the name is not legal, or the image isn't given by digest.
    """
    pools = [profile.pool(name) for name in request.pools]
    require_legal(identity.name, request.replicated_job, request.jobs, request.pods_per_job)
    require_digest(identity.image)
    manifests = [_jobset(profile, request, identity, pools)]
    if claim := _claim(request, identity, pools):
        manifests.append(_compute_domain(profile, identity, claim))
    return manifests


def owned(manifest: Manifest, jobset: Manifest) -> Manifest:
    """A secondary object that goes when its JobSet, as the API server returned it, goes."""
    owner = {
        "apiVersion": jobset["apiVersion"],
        "kind": jobset["kind"],
        "name": jobset["metadata"]["name"],
        "uid": jobset["metadata"]["uid"],
    }
    return manifest | {"metadata": manifest["metadata"] | {"ownerReferences": [owner]}}


def _jobset(profile: Profile, request: Request, identity: Identity, pools: Sequence[Pool]) -> Manifest:
    labels = _labels(profile, identity)
    queueing = {QUEUE_LABEL: profile.queue, PRIORITY_LABEL: request.priority} if profile.kueue else {}
    run = {} if identity.dagster_run_id is None else {RUN_ANNOTATION: identity.dagster_run_id}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": identity.name,
            "namespace": profile.namespace,
            "labels": queueing | labels,
            "annotations": {
                ADDRESS_ANNOTATION: identity.address,
                SPEC_ANNOTATION: identity.spec_sha256,
                IMAGE_ANNOTATION: identity.image,
                **run,
                **_exclusive_topology(profile, pools),
            },
        },
        "spec": {
            "suspend": profile.kueue,  # Kueue unsuspends it
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            # No `coordinator`: its value, which holds the JobSet's name twice, is a label, and names above 26 characters would be refused.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [request.replicated_job]},
            "failurePolicy": _failure_policy(identity),
            "replicatedJobs": [
                {
                    "name": request.replicated_job,
                    "replicas": request.jobs,
                    "template": {"metadata": {"labels": labels}, "spec": _job(profile, request, identity, pools)},
                }
            ],
        },
    }


def _labels(profile: Profile, identity: Identity) -> dict[str, str]:
    name = JobName.parse(identity.name)
    return {KEY_LABEL: name.key, ATTEMPT_LABEL: str(name.attempt), MANAGED_LABEL: profile.name}


def _failure_policy(identity: Identity) -> Manifest:
    """What counts as the application's failure and what doesn't (spec §1.5); the launcher has the last word, by all processes' ends."""
    never, passing = ("|".join(map(str, codes)) for codes in (_NEVER_AGAIN, _PASSING))
    return {
        "maxRestarts": APPLICATION_RESTARTS.get(identity.job, 0),
        "restartStrategy": "BlockingRecreate",  # JAX refuses a gang that is half of the generation before
        "rules": [
            {
                "name": "neverRetry",  # a name may have no dash
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": [f"^.*exit code ({never}) .*$"],
            },
            {
                "name": "infrastructure",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": ["^.*DisruptionTarget.*$", f"^.*exit code ({passing}) .*$"],
            },
        ],
    }


def _job(profile: Profile, request: Request, identity: Identity, pools: Sequence[Pool]) -> Manifest:
    def ended_with(codes: list[int]) -> Manifest:
        return {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": codes}}

    return {
        "parallelism": request.pods_per_job,
        "completions": request.pods_per_job,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # any pod's failure is the job's: without one process the others can't go on
        "podReplacementPolicy": "Failed",  # never a second pod while the first still ends
        "podFailurePolicy": {
            "rules": [
                ended_with(_NEVER_AGAIN),
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ended_with(_PASSING),
            ]
        },
        "template": {
            "metadata": {"labels": _labels(profile, identity), "annotations": pools[0].annotations | _topology(profile, request, pools)},
            "spec": _pod(profile, request, identity, pools),
        },
    }


def _topology(profile: Profile, request: Request, pools: Sequence[Pool]) -> dict[str, str]:
    """Kueue's annotations for where the pods of a gang must, or should, be together.

    Alternatives that call their racks by different labels have only a larger group in common, if any: within it Kueue takes the rack
    with the least room that is enough, so they are in one where that is possible.
    """
    prefix = "kueue.x-k8s.io/podset"
    labels = {pool.domain_label for pool in pools}
    if not profile.kueue or labels == {None} or pools[0].layout == "slices":
        return {}
    if len(labels) == 1:
        domain = str(pools[0].domain_label)
        if request.jobs > 1:
            return {
                f"{prefix}-preferred-topology": str(pools[0].preferred_label),
                f"{prefix}-slice-required-topology": domain,
                f"{prefix}-slice-size": str(request.pods_per_job),
            }
        fits = all(request.devices <= pool.devices_per_node * (pool.nodes_per_domain or pool.nodes) for pool in pools)
        return {f"{prefix}-{'required' if fits else 'preferred'}-topology": domain}
    shared = [
        label
        for label in (pools[0].domain_label, pools[0].preferred_label)
        if label is not None and all(label in (pool.domain_label, pool.preferred_label) for pool in pools)
    ]
    return {f"{prefix}-preferred-topology": shared[0]} if shared else {f"{prefix}-unconstrained-topology": "true"}


def _exclusive_topology(profile: Profile, pools: Sequence[Pool]) -> dict[str, str]:
    """JobSet's own way to give each job a rack or slice: always for slices (spec §2.3), for racks where there is no Kueue."""
    pool = pools[0]
    if pool.layout == "slices" or (pool.layout == "racks" and not profile.kueue):
        return {"alpha.jobset.sigs.k8s.io/exclusive-topology": str(pool.domain_label)}
    return {}


def _pod(profile: Profile, request: Request, identity: Identity, pools: Sequence[Pool]) -> Manifest:
    claim = _claim(request, identity, pools)
    shared = _shared_scratch(profile, request)
    volumes, mounts = _volumes(profile, pools[0], shared)
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _grace_seconds(pools),
        "serviceAccountName": profile.service_account,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | _volume_owner(shared),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if pools[0].host_network else {}),
        **_node_choice(pools),
        "tolerations": _tolerations(pools),
        **({"resourceClaims": [{"name": "imex", "resourceClaimTemplateName": claim}]} if claim else {}),
        "volumes": volumes,
        "containers": [_container(profile, request, identity, pools, claim) | {"volumeMounts": mounts}],
    }


def _shared_scratch(profile: Profile, request: Request) -> str | None:
    """Claim of the file system that the pods of a gang share; one pod alone is better off with its node's disk."""
    return profile.scratch_claim if request.pods > 1 else None


def _volume_owner(claim: str | None) -> Manifest:
    """Let the images' user write to a volume that an administrator made; looked at once, since it may hold millions of files."""
    return {} if claim is None else {"fsGroup": IMAGE_GROUP, "fsGroupChangePolicy": "OnRootMismatch"}


def _volumes(profile: Profile, pool: Pool, claim: str | None) -> tuple[list[Manifest], list[Manifest]]:
    """Volumes of a pod, and where its container has them."""
    volumes: list[Manifest] = [
        {"name": "scratch", "emptyDir": {}} if claim is None else {"name": "scratch", "persistentVolumeClaim": {"claimName": claim}}
    ]
    mounts: list[Manifest] = [{"name": "scratch", "mountPath": profile.scratch}]
    if pool.shared_memory_gib is not None:
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{pool.shared_memory_gib}Gi"}})
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108 - what the container calls it
    for number, (here, there) in enumerate(pool.host_paths.items()):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": there, "type": "Directory"}})
        mounts.append({"name": f"host-{number}", "mountPath": here, "readOnly": True})
    return volumes, mounts


def _node_choice(pools: Sequence[Pool]) -> Manifest:
    """The labels of one pool's nodes; of alternatives, what they have in common, and for the rest any of their values."""
    selectors = [{"kubernetes.io/arch": pool.architecture} | pool.node_selector for pool in pools]
    common = [key for key in selectors[0] if all(key in selector for selector in selectors)]
    values = {key: list(dict.fromkeys(selector[key] for selector in selectors)) for key in common}
    chosen: Manifest = {"nodeSelector": {key: found[0] for key, found in values.items() if len(found) == 1}}
    alternatives = [{"key": key, "operator": "In", "values": found} for key, found in values.items() if len(found) > 1]
    if alternatives:
        terms = {"nodeSelectorTerms": [{"matchExpressions": alternatives}]}
        chosen["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return chosen


def _tolerations(pools: Sequence[Pool]) -> list[Manifest]:
    ours = [each.model_dump(mode="json", exclude_none=True) for pool in pools for each in pool.tolerations]
    lost = [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOSS_SECONDS}
        for state in ("not-ready", "unreachable")
    ]
    return [each for index, each in enumerate(ours) if each not in ours[:index]] + lost


def _container(profile: Profile, request: Request, identity: Identity, pools: Sequence[Pool], claim: str | None) -> Manifest:
    pool = pools[0]
    memory = f"{request.memory_mib_per_pod}Mi"
    devices = {str(pool.resource): str(request.devices_per_pod)} if request.devices_per_pod else {}
    devices |= {name: str(count) for name, count in pool.extra_resources.items()}
    return {
        "name": CONTAINER,
        "image": identity.image,
        "command": ["python", "-m", "marin_jobs", f"{identity.folder}/spec.json"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": _ports(request, pools),
        "env": _environment(profile, request, identity, pools),
        "resources": {
            "requests": {"cpu": f"{request.millicores_per_pod}m", "memory": memory, **devices},
            "limits": {"memory": memory, **devices},
            **({"claims": [{"name": "imex"}]} if claim else {}),
        },
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _ports(request: Request, pools: Sequence[Pool]) -> list[Manifest]:
    """None where two pods of a gang share a node's network: a port that is named there would be one pod's alone."""
    pool = pools[0]
    if pool.host_network and any(request.devices_per_pod < each.devices_per_node for each in pools):
        return []
    others = [{"containerPort": port} for port in pool.ports if port != pool.coordinator_port]
    return [{"containerPort": pool.coordinator_port, "name": "coordinator"}, *others]


def _environment(profile: Profile, request: Request, identity: Identity, pools: Sequence[Pool]) -> list[Manifest]:
    """Everything that a process needs to know of its place is said (spec §2.5): JAX's own detection takes each job for a cluster."""
    pool = pools[0]
    # What killed pods leave on a volume that outlives them is cleared; so they have a folder to themselves there.
    scratch = profile.scratch if _shared_scratch(profile, request) is None else f"{profile.scratch}/pods"
    fields = {
        "MARIN_JOB_INDEX": f"metadata.labels['{JOB_INDEX}']",
        "MARIN_POD_INDEX": f"metadata.labels['{POD_INDEX}']",
        "MARIN_RESTART": f"metadata.labels['{RESTART}']",
        "MARIN_NODE": "spec.nodeName",
        "MARIN_POD": "metadata.name",
        "MARIN_POD_IP": "status.podIP",
    }
    given = {
        **pool.environment,
        **identity.environment,
        "PYTHONUNBUFFERED": "1",
        "MARIN_JOB_FOLDER": identity.folder,
        "MARIN_COORDINATOR": coordinator(identity.name, request.replicated_job, pool.coordinator_port),
        "MARIN_NUM_PROCESSES": str(request.pods),
        "MARIN_PODS_PER_JOB": str(request.pods_per_job),
        "MARIN_GRACE_SECONDS": str(_grace_seconds(pools)),
        "MARIN_RETRY_DELAY_SECONDS": str(profile.retry_delay_seconds),
        **({} if profile.region is None else {"MARIN_REGION": profile.region}),
        **({} if _shared_scratch(profile, request) is None else {"MARIN_SHARED_SCRATCH": scratch}),
        "MARIN_SCRATCH": f"{scratch}/$(MARIN_POD)",
    }
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),  # $(MARIN_POD) needs it before
        *({"name": name, "value": value} for name, value in given.items() if name not in fields),
    ]


def _grace_seconds(pools: Sequence[Pool]) -> int:
    """From SIGTERM to SIGKILL; enough for the job to save, or it wouldn't have been placed on any of the pools."""
    return min(pool.grace_seconds for pool in pools)


def _claim(request: Request, identity: Identity, pools: Sequence[Pool]) -> str | None:
    """Template of the claim for memory that several nodes share; one node needs none."""
    return f"{identity.name}-imex" if pools[0].imex == "per_jobset" and request.pods > 1 else None


def _compute_domain(profile: Profile, identity: Identity, claim: str) -> Manifest:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": identity.name, "namespace": profile.namespace, "labels": _labels(profile, identity)},
        "spec": {"numNodes": 0, "channel": {"allocationMode": "Single", "resourceClaimTemplate": {"name": claim}}},
    }
