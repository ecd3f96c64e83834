"""The process that `benchmarks.launcher` measures: it submits jobs to a cluster, follows them all, and says what that took.

    python -m benchmarks.launcher_process PROFILE PREFIX JOBS SECONDS

prints `Figures` as JSON. The cluster is that of KUBECONFIG.
"""

import gc
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from marin_assets.launch import Handle
from marin_assets.launch.contract import job_name
from marin_assets.launch.kubernetes.client import JOBSETS, Cluster, Json
from marin_assets.launch.kubernetes.following import SETTLED_SECONDS, SUBMITTING, Connection
from marin_assets.launch.kubernetes.launcher import KubernetesLauncher
from marin_assets.launch.kubernetes.names import JobName
from marin_assets.launch.kubernetes.opening import load_profile
from marin_core.artifact import Resources, Store
from marin_core.artifact.job import JobSpec

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

MARKS = (0.2, 0.6, 1.0)
"""Shares of the jobs after which the process's memory is noted."""

PAUSE_SECONDS = 0.2
"""Between two questions about a job, as whoever builds an artifact asks about it."""

LONGEST_SECONDS = 900.0
"""For the cluster's word on all jobs."""

PEER_JOBS = 25
"""Jobs that are submitted and looked at with the plain client, one by one."""

ASKED = Resources(cpus=8)
"""Of each job; the bed's queue lets four of them run at a time."""

IMAGE = "images.example.org/marin/cpu@sha256:" + "0" * 64


@dataclass(frozen=True)
class Spell:
    """A time in which something was done again and again.

    Attributes:
        times: how often.
        cpu_seconds: of the process, its watching thread included.
        requests: verb → number; a watch counts when it begins.
        looks: at the cluster, each at all jobs that are followed.
    """

    times: int
    seconds: float
    cpu_seconds: float
    requests: Mapping[str, int]
    looks: int


@dataclass(frozen=True)
class Figures:
    """What it took.

    Attributes:
        submissions: of all jobs.
        settling: all jobs followed while they are new to the launcher, `settled` once they have waited for a while; counts questions.
        followed_bytes: number of followed jobs → memory of the process.
        warm_bytes, end_bytes: memory of the process after `settling` and after `settled`. The first looks take more with each, since the
            lists of two looks are there at once, and pieces of them lie between each other.
        peer_submissions, peer_looks: at one job with the plain client.
    """

    submissions: Spell
    settling: Spell
    settled: Spell
    followed_bytes: Mapping[int, int]
    warm_bytes: int
    end_bytes: int
    peer_submissions: Spell
    peer_looks: Spell

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what the process prints."""
        values: dict[str, Any] = json.loads(text)
        spells = {name: Spell(**value) for name, value in values.items() if isinstance(value, dict) and "times" in value}
        return cls(**(values | spells | {"followed_bytes": {int(jobs): size for jobs, size in values["followed_bytes"].items()}}))


class CountingCluster(Cluster):
    """A connection that knows what it has asked for.

    Attributes:
        requests: verb → number.
        looks: lists of JobSets.
    """

    def __init__(self, connect: "Callable[[], ApiClient]") -> None:
        super().__init__(connect)
        self.requests: Counter[str] = Counter()
        self.looks = 0

    def get(self, path: str) -> Json:
        self.requests["get"] += 1
        return super().get(path)

    def list(self, path: str, selector: str | None = None) -> Json:
        self.requests["list"] += 1
        self.looks += path.endswith(f"/{JOBSETS.plural}")
        return super().list(path, selector)

    def create(self, path: str, manifest: Json) -> Json:
        self.requests["create"] += 1
        return super().create(path, manifest)

    def watch(self, path: str, selector: str | None, version: str) -> Iterator[str]:
        self.requests["watch"] += 1
        return super().watch(path, selector, version)


class Measured:
    """A launcher of jobs, and what it asks for.

    Args:
        mirrors: folder for copies of what they have said.
    """

    def __init__(self, profile: str, prefix: str, mirrors: Path) -> None:
        self.cluster = CountingCluster.of_context(None)
        self.profile = load_profile(profile)
        self.launcher = KubernetesLauncher(Connection.open(self.profile, self.cluster), f"{prefix}/.jobs", mirrors, {"cpu": IMAGE})
        self.prefix = prefix
        self.handles: list[Handle] = []

    def submit(self) -> None:
        """Submit one more job."""
        spec = spec_of(len(self.handles), self.prefix)
        name = job_name(spec.id, Store(self.prefix).address(spec.id), 1, "2026-01-01T00:00:00+00:00")
        self.handles.append(self.launcher.submit(name, spec, {}, ASKED))

    def observe(self) -> int:
        """Ask about every job; the number of those of which the cluster has said how they stand."""
        seen = [self.launcher.observe(handle).standing for handle in self.handles]
        return sum(each is not None and each.phase != SUBMITTING for each in seen)

    def spell(self, do: Callable[[], object], *, times: int | None = None, seconds: float = 0.0, a_time: int = 1) -> Spell:
        """Do something so often, or with pauses for so long.

        Args:
            a_time: how many things it is each time.
        """
        requests, looks = Counter(self.cluster.requests), self.cluster.looks
        began, cpu, done = time.monotonic(), time.process_time(), 0
        while done < times if times is not None else time.monotonic() < began + seconds:
            do()
            done += 1
            if times is None:
                time.sleep(PAUSE_SECONDS)
        return Spell(
            times=done * a_time,
            seconds=time.monotonic() - began,
            cpu_seconds=time.process_time() - cpu,
            requests=dict(self.cluster.requests - requests),
            looks=self.cluster.looks - looks,
        )


def measure(profile: str, prefix: str, jobs: int, seconds: float) -> Figures:
    """Submit so many jobs and follow them, each of two times for so long."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as mirrors:
        measured = Measured(profile, prefix, Path(mirrors))
        submissions, followed_bytes = [], {}
        for mark in (round(share * jobs) for share in MARKS):
            submissions.append(measured.spell(measured.submit, times=mark - len(measured.handles)))
            deadline = time.monotonic() + LONGEST_SECONDS
            while measured.observe() < mark:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the cluster has not said of all {mark} jobs how they stand")
                time.sleep(PAUSE_SECONDS)
            followed_bytes[mark] = memory_bytes()
        settling = measured.spell(measured.observe, seconds=seconds, a_time=jobs)
        warm_bytes = memory_bytes()
        measured.spell(measured.observe, seconds=SETTLED_SECONDS)
        settled = measured.spell(measured.observe, seconds=seconds, a_time=jobs)
        end_bytes = memory_bytes()
        peer_submissions, peer_looks = measure_peer(measured)
    return Figures(together(submissions), settling, settled, followed_bytes, warm_bytes, end_bytes, peer_submissions, peer_looks)


def measure_peer(measured: Measured) -> tuple[Spell, Spell]:
    """What the plain client takes for submissions of jobs, and for looks at one job and its pods, as Dagster's client for pods has them."""
    from kubernetes import client, config

    connected = config.new_client_from_config()
    jobsets, pods = client.CustomObjectsApi(connected), client.CoreV1Api(connected)
    group, version = JOBSETS.group.split("/")
    place = {"group": group, "version": version, "namespace": measured.profile.namespace, "plural": JOBSETS.plural}
    first = jobsets.get_namespaced_custom_object(name=measured.handles[0].name, **place)
    own = {key: first["metadata"][key] for key in ("namespace", "labels", "annotations")}
    names = iter(measured.launcher.handle(_peer_name(measured.handles[0].name, number)).name for number in range(PEER_JOBS))

    def submit() -> None:
        body = {"apiVersion": first["apiVersion"], "kind": first["kind"], "spec": first["spec"] | {"suspend": True}}
        jobsets.create_namespaced_custom_object(body=body | {"metadata": own | {"name": next(names)}}, **place)

    def look() -> None:
        jobsets.get_namespaced_custom_object(name=measured.handles[0].name, **place)
        pods.list_namespaced_pod(place["namespace"], label_selector=f"jobset.sigs.k8s.io/jobset-name={measured.handles[0].name}")

    return measured.spell(submit, times=PEER_JOBS), measured.spell(look, times=PEER_JOBS)


def spec_of(number: int, prefix: str) -> JobSpec:
    """A job that builds next to nothing."""
    return JobSpec(
        name="trivial/queued",
        version="v1",
        partition=f"{number:05d}",
        job="summary",
        prefix=prefix,
        config={"of": [], "metrics": ["*"]},
        fingerprint="0" * 64,
        identity={},
        inputs=(),
        attempt=1,
        scratch="",
    )


def together(spells: Sequence[Spell]) -> Spell:
    """Spells as one."""
    return Spell(
        times=sum(each.times for each in spells),
        seconds=sum(each.seconds for each in spells),
        cpu_seconds=sum(each.cpu_seconds for each in spells),
        requests=dict(sum((Counter(each.requests) for each in spells), Counter())),
        looks=sum(each.looks for each in spells),
    )


def memory_bytes() -> int:
    """Memory of this process, without what is only waiting to be collected."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _peer_name(name: str, number: int) -> str:
    """A name like a job's, for one that the launcher doesn't know."""
    return f"{name.rpartition('-a')[0]}-a{JobName.parse(name).attempt + 1 + number}"


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))))
