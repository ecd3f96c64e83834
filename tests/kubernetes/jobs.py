"""Jobs for the bed, rendered as the launcher renders them, and what the cluster says about them."""

import base64
import hashlib
from pathlib import Path
from typing import Any

from marin_assets.launch.kubernetes.manifest import Identity, render
from marin_assets.launch.kubernetes.placement import place
from marin_assets.launch.kubernetes.profile import Profile
from marin_core.artifact.step import Accelerators, Resources
from tests.kubernetes.bed.api import JOBSET, KUEUE, Manifest
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.nodes import NVLINK_DOMAIN
from tests.kubernetes.bed.pods import Act
from tests.kubernetes.bed.programs import wait_until

PROFILES = Path(__file__).parents[2] / "deploy" / "kubernetes" / "profiles"
IMAGE = "registry.invalid/marin@sha256:" + "0" * 64
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
POD_INDEX = "batch.kubernetes.io/job-completion-index"
FOREVER = Act()
WAIT_SECONDS = 120.0
"""Far above what anything takes here; a machine that is busy with other work takes a while to start 32 pods."""


def bed_profile(namespace: str = "team-a") -> Profile:
    """The profile of the bed, for one of its teams."""
    return profile("testbed").model_copy(update={"namespace": namespace})


def profile(name: str) -> Profile:
    path = PROFILES / f"{name}.yaml"
    return Profile.parse(path.read_text(), str(path))


def gpus(nodes: int, *kinds: str, priority: str = "batch", devices: int | None = None) -> Resources:
    """Nodes with GPUs of the given kinds, GB200 if none is given."""
    asked = Accelerators(kinds=kinds or ("gb200",), nodes=nodes, devices_per_node=devices)
    return Resources(accelerators=asked, priority=priority, save_seconds=5)


def tpus(hosts: int) -> Resources:
    return Resources(accelerators=Accelerators(kinds=("tpu_v5e",), nodes=hosts), save_seconds=5)


def job_name(slug: str, attempt: int = 1) -> str:
    """A legal name that is the same for the same slug."""
    key = base64.b32encode(hashlib.sha256(slug.encode()).digest()).decode().lower()[:10]
    return f"m-{slug}-{key}-a{attempt}"


def manifest(
    slug: str,
    resources: Resources,
    act: Act | None = FOREVER,
    *,
    on: Profile | None = None,
    job: str = "train",
    max_restarts: int | None = None,
    node_loss_seconds: int | None = None,
) -> Manifest:
    """The JobSet that the launcher would make for a job.

    Args:
        act: how its pods act; None runs their command.
        job: module of `marin_jobs`, which decides about restarts.
        max_restarts: instead of the job's own.
        node_loss_seconds: from a node's silence until its pods are given up, instead of the launcher's.
    """
    on = on or bed_profile()
    name = job_name(slug)
    identity = Identity(name=name, job=job, address=f"gs://lab/{slug}", folder=f"gs://lab/.jobs/{name}", spec_sha256="0" * 64, image=IMAGE)
    jobset = render(on, place(on, resources), identity)[0]
    template = pod_template(jobset)
    if act is not None:
        template["metadata"].setdefault("annotations", {}).update(act.annotations())
    if max_restarts is not None:
        jobset["spec"]["failurePolicy"]["maxRestarts"] = max_restarts
    for toleration in template["spec"]["tolerations"]:
        if node_loss_seconds is not None and "tolerationSeconds" in toleration:
            toleration["tolerationSeconds"] = node_loss_seconds
    return jobset


def pod_template(jobset: Manifest) -> dict[str, Any]:
    template: dict[str, Any] = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


def command(jobset: Manifest, *parts: str) -> Manifest:
    """Let the pods of a JobSet run a command of the test's."""
    pod_template(jobset)["spec"]["containers"][0]["command"] = list(parts)
    return jobset


class Submitted:
    """A JobSet in the cluster: one look a call."""

    def __init__(self, bed: Bed, jobset: Manifest) -> None:
        self.bed = bed
        created = bed.api.create(jobset)
        self.name: str = created["metadata"]["name"]
        self.namespace: str = created["metadata"]["namespace"]
        self.uid: str = created["metadata"]["uid"]
        jobs = jobset["spec"]["replicatedJobs"][0]
        self.size: int = jobs["replicas"] * jobs["template"]["spec"]["parallelism"]

    def object(self) -> Manifest:
        return self.bed.api.get(JOBSET, "JobSet", self.name, self.namespace)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.object().get("status", {})
        return status

    def workload(self) -> Manifest | None:
        """Kueue's object for the JobSet, found by its owner."""
        for found in self.bed.api.list(KUEUE, "Workload", self.namespace):
            if any(owner["uid"] == self.uid for owner in found["metadata"].get("ownerReferences", [])):
                return found
        return None

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the Workload; empty if it isn't there."""
        return condition(self.workload() or {}, kind)

    def admitted(self) -> bool:
        return bool(self.condition("Admitted").get("status") == "True")

    def flavors(self) -> set[str]:
        """The flavors that Kueue chose for the devices."""
        admission = (self.workload() or {}).get("status", {}).get("admission", {})
        return {flavor for podset in admission.get("podSetAssignments", []) for flavor in podset.get("flavors", {}).values()}

    def pods(self) -> list[Manifest]:
        return self.bed.api.list("v1", "Pod", self.namespace, labelSelector=f"jobset.sigs.k8s.io/jobset-name={self.name}")

    def running(self) -> list[Manifest] | None:
        """All its pods, once all of them run and none of them is to go."""
        pods = self.pods()
        well = [pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]
        return pods if len(well) == len(pods) == self.size else None

    def wait_running(self, seconds: float = WAIT_SECONDS) -> list[Manifest]:
        return wait_until(f"{self.size} pods of {self.name} to run", self.running, seconds)

    def wait_generation_after(self, pods: list[Manifest], seconds: float = WAIT_SECONDS) -> list[Manifest]:
        """Wait until all its pods run again, and none of them is one of those before."""
        before = {pod["metadata"]["uid"] for pod in pods}

        def renewed() -> list[Manifest] | None:
            now = self.running()
            return now if now is not None and before.isdisjoint(pod["metadata"]["uid"] for pod in now) else None

        return wait_until(f"a new generation of {self.name}", renewed, seconds)

    def wait_ended(self, seconds: float = WAIT_SECONDS) -> str:
        """Wait for the JobSet's end: Completed or Failed."""
        return str(wait_until(f"{self.name} to end", lambda: self.status.get("terminalState"), seconds))

    def restarts(self) -> tuple[int, int]:
        """Restarts that count against the job, and those that don't (spec/kubernetes.md §1.5)."""
        status = self.status
        counted = status.get("restartsCountTowardsMax", 0)
        return counted, status.get("restarts", 0) - counted

    def delete(self) -> None:
        self.bed.api.delete(JOBSET, "JobSet", self.name, self.namespace)

    def gone(self) -> bool:
        return self.bed.api.find(JOBSET, "JobSet", self.name, self.namespace) is None and not self.pods()


def condition(manifest: Manifest, kind: str) -> dict[str, Any]:
    """A condition of an object's status; empty if it isn't there."""
    found: list[dict[str, Any]] = [each for each in manifest.get("status", {}).get("conditions", []) if each["type"] == kind]
    return found[0] if found else {}


def domains(bed: Bed, pods: list[Manifest], label: str = NVLINK_DOMAIN) -> dict[int, set[str]]:
    """For each child job of a JobSet, the racks (or slices, by another label) that its pods are in."""
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in bed.api.list("v1", "Node")}
    found: dict[int, set[str]] = {}
    for pod in pods:
        found.setdefault(int(pod["metadata"]["labels"][JOB_INDEX]), set()).add(nodes[pod["spec"]["nodeName"]][label])
    return found
