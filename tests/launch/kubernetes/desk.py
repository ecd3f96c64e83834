"""A launcher on a scripted API, whose time a test sets and whose objects a test moves on: what is seen without any process running."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from marin_assets.launch import Handle, Observation
from marin_assets.launch.contract import job_name
from marin_assets.launch.kubernetes.following import Connection
from marin_assets.launch.kubernetes.launcher import KubernetesLauncher
from marin_assets.launch.kubernetes.names import JOB_UID_LABEL, JOBSET_NAME_LABEL
from marin_core.artifact import ArtifactId, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import JobFolder, Outcome
from marin_core.artifact.step import Resources
from tests.launch.kubernetes.scripted_api import Json, ScriptedApi
from tests.launch.worlds import DIGEST, toy_profile

ARTIFACT = ArtifactId("checkpoints/run", "v1")
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-a/workloads"
LOCAL_QUEUE = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-a/localqueues/train"
PODS = "/api/v1/namespaces/team-a/pods"
BEGAN = 1_800_000_000.0


@dataclass
class Time:
    """Seconds, which pass when a test says so."""

    now: float = BEGAN

    def __call__(self) -> float:
        return self.now

    def stamp(self, ago: float = 0.0) -> str:
        return datetime.fromtimestamp(self.now - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Desk:
    """One artifact's job.

    Attributes:
        values: of the profile, where they aren't the toy's.
    """

    api: ScriptedApi
    folder: Path
    values: dict[str, Any] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        self.api.clock = self.time
        queueing = {"kueue": True, "queue": "train", "priorities": ["batch", "production"]}
        self.profile = toy_profile(self.folder, **(queueing | self.values))
        self.store = Store(f"file://{self.folder}/store")
        self.name = job_name(ARTIFACT, self.store.address(ARTIFACT), 1, "2026-11-30T12:00:00+00:00")
        self.path = f"{JOBSETS}/{self.name}"
        self.launcher = self.launcher_anew()
        self.handle: Handle = self.launcher.handle(self.name)
        self.job_folder = JobFolder(str(self.handle.url))

    def launcher_anew(self, mirrors: str = "mirrors") -> KubernetesLauncher:
        """As another process has it."""
        connection = Connection.open(self.profile, self.api.cluster(), watch=False, clock=self.time, wall=self.time)
        images = {"cpu": DIGEST, "cuda": DIGEST}
        return KubernetesLauncher(connection, f"{self.store.prefix}/.jobs", self.folder / mirrors, images)

    def spec(self, **values: Any) -> JobSpec:
        given: dict[str, Any] = {
            "name": ARTIFACT.name,
            "version": ARTIFACT.version,
            "partition": None,
            "job": "train",
            "prefix": self.store.prefix,
            "config": {},
            "fingerprint": "f" * 16,
            "identity": {},
            "inputs": (),
            "attempt": 1,
            "scratch": "/elsewhere",
            "processes": self.resources.processes,
        }
        return JobSpec.from_json(given | values)

    def submit(self, launcher: KubernetesLauncher | None = None, **values: Any) -> Handle:
        return (launcher or self.launcher).submit(self.name, self.spec(**values), {}, self.resources)

    def see(self, seconds: float = 3.0, launcher: KubernetesLauncher | None = None) -> Observation:
        """What is seen after some seconds."""
        self.time.now += seconds
        return (launcher or self.launcher).observe(self.handle)

    # What controllers would do ------------------------------------------------------------------------------------------

    def jobset(self, **status: Any) -> Json:
        """Change the JobSet's status."""
        return self.api.change(self.path, lambda thing: thing.setdefault("status", {}).update(status))

    def start(self, ready: bool = True) -> None:
        """Admit it, and make its pods."""
        self.api.change(self.path, lambda thing: thing["spec"].update(suspend=False))
        for process in range(self.resources.processes):
            self.pod(process, ready=ready)
        self.workload(Admitted=True, QuotaReserved=True, PodsReady=ready)

    def pod(self, process: int, *, ready: bool = True, restart: int = 0, **status: Any) -> str:
        name = f"{self.name}-worker-0-{process}-{restart:05d}"
        labels = {
            JOBSET_NAME_LABEL: self.name,
            "marin-assets/managed": self.profile.name,
            "jobset.sigs.k8s.io/job-global-index": "0",
            "batch.kubernetes.io/job-completion-index": str(process),
            "jobset.sigs.k8s.io/restart-attempt": str(restart),
        }
        told = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]} | status
        metadata = {"name": name, "namespace": "team-a", "labels": labels, "creationTimestamp": self.time.stamp()}
        self.api.put(f"{PODS}/{name}", {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": f"node-{process}"}, "status": told})
        return name

    def workload(self, active: bool = True, messages: dict[str, str] | None = None, **conditions: bool) -> str:
        """Make or change its Workload, as Kueue calls it."""
        name = f"jobset-{self.name}-1a2b3"
        uid = self.api.objects[self.path]["metadata"]["uid"]
        told = [
            {"type": kind, "status": str(holds), "lastTransitionTime": self.time.stamp(), "message": (messages or {}).get(kind, "")}
            for kind, holds in conditions.items()
        ]
        pods = [{"count": self.resources.processes, "template": {"spec": self._pod_spec()}}]
        self.api.put(
            f"{WORKLOADS}/{name}",
            {
                "kind": "Workload",
                "metadata": {
                    "name": name,
                    "namespace": "team-a",
                    "labels": {JOB_UID_LABEL: uid},
                    "ownerReferences": [{"uid": uid}],
                    "creationTimestamp": self.time.stamp(),
                },
                "spec": {"active": active, "queueName": "train", "priority": 100, "podSets": pods},
                "status": {"conditions": told},
            },
        )
        return name

    def _pod_spec(self) -> Json:
        spec: Json = self.api.objects[self.path]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        return spec

    def leave(self, process: int, code: int, message: str | None = None, *, restart: int = 0, peer_lost: bool = False) -> None:
        """A pod's last word."""
        generation = f"{restart * 100 + process:020d}"
        pod = f"{self.name}-worker-0-{process}-{restart:05d}"
        ended_at = datetime.fromtimestamp(self.time.now, UTC)
        self.job_folder.leave(
            Outcome(
                generation=generation,
                process=process,
                exit_code=code,
                message=message,
                restart=restart,
                peer_lost=peer_lost,
                pod=pod,
                ended_at=ended_at,
            )
        )

    def restart(self, times: int, *, counted: int = 0) -> None:
        """JobSet has restarted it so often, and its pods are ready again."""
        for path in [path for path in self.api.objects if path.startswith(f"{PODS}/{self.name}")]:
            self.api.remove(path)
        for process in range(self.resources.processes):
            self.pod(process, restart=times)
        self.jobset(restarts=times, **({"restartsCountTowardsMax": counted} if counted else {}))

    def until(self, wanted: Callable[[Observation], bool], looks: int = 200, seconds: float = 3.0) -> Observation:
        """Look until what is wanted is seen, in the desk's own time."""
        for _ in range(looks):
            if wanted(seen := self.see(seconds)):
                return seen
        raise AssertionError(seen)
