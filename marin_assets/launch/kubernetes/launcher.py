"""Jobs on a cluster. The cluster restarts quickly, the launcher judges, and the record decides (spec/kubernetes.md §1)."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from marin_assets.launch.contract import NOTHING_SPECIAL, Handle, Observation
from marin_assets.launch.kubernetes.client import (
    JOBSETS,
    LOG_LIMIT_BYTES,
    PODS,
    WORKLOADS,
    ApiError,
    ConflictError,
    Json,
    NotFoundError,
    RefusedError,
)
from marin_assets.launch.kubernetes.following import CONFIRM_SECONDS, Connection, FollowedJob
from marin_assets.launch.kubernetes.manifest import CONTAINER, Identity, render
from marin_assets.launch.kubernetes.names import JOB_UID_LABEL, JOBSET_NAME_LABEL
from marin_assets.launch.kubernetes.objects import container_state, newest, shape
from marin_assets.launch.kubernetes.placement import Request, place
from marin_assets.launch.kubernetes.profile import IMAGE_VARIABLES
from marin_assets.launch.kubernetes.queue import QueueEntry, queue
from marin_assets.launch.kubernetes.view import FORGOTTEN_SECONDS
from marin_core.artifact.canonical import digest
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import JobFolder
from marin_core.artifact.step import Resources
from marin_core.artifact.store import Store
from marin_core.errors import ConfigError, InfrastructureError
from marin_core.redaction import redact

CANCEL_SECONDS = 300.0
"""How much longer than its grace a pod may take to end before whoever cancels is told which one it is."""

REST_SECONDS = 5.0
"""After the last pod's end before a paused job is activated: earlier, JobSet counted a restart that was none in 2 of 4 tries."""

LOOK_SECONDS = 0.5
"""Between two looks while somebody waits for an end."""

SHOWN = 3


def spec_digest(spec: JobSpec) -> str:
    """What a job builds and on which try. Not where and for whom: a launcher with newer code, or of another run, adopts the same job."""
    return digest(
        {
            "artifact": f"{spec.output_prefix or spec.prefix}/{spec.id.path}",
            "job": spec.job,
            "fingerprint": spec.fingerprint,
            "inputs": [each.content_digest for each in spec.inputs],
            "attempt": spec.attempt,
        }
    )


class KubernetesLauncher:
    """Runs each job as a JobSet; the job's folder in the store is what launcher and pods share.

    Any launcher with the same profile sees the same jobs, wherever it runs. Nothing that it keeps itself is needed: what a job has said is
    copied from the job's folder, and how it stands is read from the cluster.

    Args:
        jobs: URL below which jobs have their folders.
        mirrors: local folder for copies of what they have said.
        images: reference by digest of each kind of image; None = those that the deployment's environment names.
    """

    adopts = True

    def __init__(self, connection: Connection, jobs: str, mirrors: Path, images: Mapping[str, str] | None = None) -> None:
        self.profile = connection.profile
        self.host = f"k8s-{self.profile.name}-{self.profile.namespace}"
        self._connection = connection
        self._cluster = connection.cluster
        self._clock = connection.clock
        self._jobs_url = jobs.rstrip("/")
        self._mirrors = mirrors / self.host
        self._images = images
        self._jobs: dict[str, FollowedJob] = {}
        self._lock = Lock()

    def handle(self, name: str) -> Handle:
        return Handle(name, self._mirrors / name, f"{self._jobs_url}/{name}")

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str], resources: Resources = NOTHING_SPECIAL) -> Handle:
        """Hand the job to the cluster, or adopt it. What the cluster refuses, and an API server that is away, `observe` tells."""
        handle = self.handle(name)
        job = self._job(handle)
        with job.lock:
            try:
                job.spec = self._agreed_spec(job, spec)
                request = place(self.profile, resources)
                self._require_common_folder(job.spec, request)
                job.submit(render(self.profile, request, self._identity(handle, job.spec, environment, request)))
            except ConfigError as error:
                job.refuse(error)
        return handle

    def _agreed_spec(self, job: FollowedJob, spec: JobSpec) -> JobSpec:
        """The spec that lies in the job's folder: this one, or that of a launcher which was first.

        Raises:
            ConfigError: that one builds something else.
        """
        spec = spec.model_copy(update={"scratch": f"{self.profile.scratch}/{job.handle.name}"})
        there = None if job.folder.write_spec(spec.model_dump_json()) else job.read_spec()
        if there is not None and spec_digest(there) != spec_digest(spec):
            raise ConfigError(
                f"{job.folder.url} holds the spec of something else: it has the digest {spec_digest(there)}, this job {spec_digest(spec)}",
                advice="Look whose it is; it isn't touched. A new attempt has a name of its own.",
            )
        return there or spec

    def _require_common_folder(self, spec: JobSpec, request: Request) -> None:
        """Refuse a gang whose processes would have no folder in common.

        Raises:
            ConfigError: its store is a bucket, and pods share no file system.
        """
        prefix = spec.output_prefix or spec.prefix
        if request.pods > 1 and self.profile.scratch_claim is None and not Store(prefix).is_local:
            raise ConfigError(
                f"{spec.id} is built by {request.pods} pods, which write each checkpoint together, and {prefix} is no file system",
                advice=f"Name a claim that all pods can mount as scratch_claim of the profile {self.profile.name}.",
            )

    def _identity(self, handle: Handle, spec: JobSpec, environment: Mapping[str, str], request: Request) -> Identity:
        image = self.profile.pool(request.pools[0]).image
        variable = IMAGE_VARIABLES[image]
        reference = os.environ.get(variable) if self._images is None else self._images.get(image)
        if not reference:
            raise ConfigError(
                f"no {image} image is known for jobs on {self.profile.name}", advice=f"Set {variable} to the image's reference by digest."
            )
        return Identity(
            name=handle.name,
            job=spec.job,
            address=f"{spec.output_prefix or spec.prefix}/{spec.id.path}",
            folder=str(handle.url),
            spec_sha256=spec_digest(spec),
            image=reference,
            dagster_run_id=spec.dagster_run_id,
            environment=environment,
        )

    def observe(self, handle: Handle) -> Observation:
        job = self._job(handle)
        with job.lock:
            return job.observe()

    def queue(self, pool: str | None = None) -> list[QueueEntry]:
        """What waits in the cluster's queue, after what has got through it (see `queue.queue`)."""
        return queue(self._cluster, self.profile, pool)

    # Out of the cluster -------------------------------------------------------------------------------------------------

    def cancel(self, handle: Handle, grace_seconds: float | None = None) -> None:
        """Delete the job and all that it owns; returns when its pods are gone.

        Args:
            grace_seconds: how long that may take; None = what its pods are granted, and some minutes. A pod on a dead node holds a
                deletion open, and is never forced: its process may still run there.

        Raises:
            InfrastructureError: pods are left; says which, and where.
        """
        job = self._job(handle)
        grace = max(pool.grace_seconds for pool in self.profile.pools) + CANCEL_SECONDS if grace_seconds is None else grace_seconds
        deadline = self._clock() + grace
        job.submission = None
        found_nothing = False
        while True:
            try:
                left = self._delete(handle.name)
                if left is None and found_nothing:
                    break
                found_nothing = left is None
            except ApiError as error:
                found_nothing, left = False, error.message
            if self._clock() > deadline and left is not None:
                raise InfrastructureError(
                    f"job {handle.name} hasn't ended {grace:.0f} s after it was cancelled: {left}",
                    advice="Look at that node; if it is gone for good, taint it node.kubernetes.io/out-of-service:NoExecute.",
                )
            time.sleep(CONFIRM_SECONDS if found_nothing else LOOK_SECONDS)
        self._connection.view.forget(handle.name)

    def _delete(self, name: str) -> str | None:
        """Begin to delete a JobSet unless that has begun; what is left of it, or None."""
        path = JOBSETS.path(self.profile.namespace, name)
        with suppress(NotFoundError, ConflictError):
            jobset = self._cluster.get(path)
            if "deletionTimestamp" not in jobset["metadata"]:
                self._cluster.delete(path, jobset["metadata"]["uid"])
            return _whereabouts(self._pods(name)) or "its JobSet is being deleted"
        return _whereabouts(self._pods(name)) or None

    def pause(self, handle: Handle) -> None:
        """Have the job's pods save and end, and let others take its place until it is unpaused. Safe to repeat."""
        self._activate(handle, active=False)

    def unpause(self, handle: Handle, patience_seconds: float = CANCEL_SECONDS) -> None:
        """Queue a paused job again, once its last pod is gone and some seconds have passed. Safe to repeat.

        Raises:
            InfrastructureError: pods are left.
        """
        deadline = self._clock() + patience_seconds
        had_pods = False
        while pods := self._pods(handle.name):
            had_pods = True
            if self._clock() > deadline:
                raise InfrastructureError(
                    f"job {handle.name} is paused but still has pods: {_whereabouts(pods)}", advice="Look at that node, and try again."
                )
            time.sleep(LOOK_SECONDS)
        if had_pods:
            time.sleep(REST_SECONDS)
        self._activate(handle, active=True)

    def _activate(self, handle: Handle, *, active: bool) -> None:
        namespace = self.profile.namespace
        try:
            uid = self._cluster.get(JOBSETS.path(namespace, handle.name))["metadata"]["uid"]
        except NotFoundError:
            raise ConfigError(f"there is no job {handle.name} on {self.host}", advice="`marin queue` lists them.") from None
        workloads = self._cluster.list(WORKLOADS.path(namespace), f"{JOB_UID_LABEL}={uid}")["items"] if self.profile.kueue else []
        if not workloads:
            raise ConfigError(f"job {handle.name} isn't in a queue of Kueue, so it can't be paused", advice="Cancel it, or wait.")
        for workload in workloads:
            if workload["spec"].get("active", True) != active:
                self._cluster.patch(WORKLOADS.path(namespace, workload["metadata"]["name"]), {"spec": {"active": active}})
        self._connection.view.nudge()

    # What it printed ----------------------------------------------------------------------------------------------------

    def logs(self, handle: Handle, tail_lines: int, process: int | None = None) -> str:
        """The last lines of a process: from the job's folder, else from its pod, else its pod's last word.

        Args:
            process: None = the one on whose account the job ended, or was restarted last; else process 0.
        """
        job = self._job(handle)
        process = job.blamed if process is None else process
        text = ""
        with suppress(InfrastructureError):  # whoever asks wants to tell why a job failed, which must not fail over this
            text = job.mirror.tail(process, tail_lines)
        if not text:
            with suppress(ApiError, RefusedError):  # that a pod has no log any more is no news
                text = self._pod_log(handle.name, process, tail_lines)
        return redact(text)

    def _pod_log(self, name: str, process: int, tail_lines: int) -> str:
        jobset = self._cluster.get(JOBSETS.path(self.profile.namespace, name))
        pod = newest(self._pods(name), shape(jobset)[1]).get(process)
        if pod is None:
            return ""
        path = PODS.path(self.profile.namespace, pod["metadata"]["name"], "log")
        query = [("container", CONTAINER), ("tailLines", str(tail_lines)), ("limitBytes", str(LOG_LIMIT_BYTES))]
        try:
            return self._cluster.text(path, query)
        except (ApiError, RefusedError):
            return str(container_state(pod, "terminated").get("message", ""))

    def _pods(self, name: str) -> list[Json]:
        pods: list[Json] = self._cluster.list(PODS.path(self.profile.namespace), f"{JOBSET_NAME_LABEL}={name}")["items"]
        return pods

    def _job(self, handle: Handle) -> FollowedJob:
        """What this process knows of a job. Jobs that nobody has asked about for a while are forgotten."""
        now = self._clock()
        with self._lock:
            job = self._jobs.get(handle.name)
            if job is None:
                self._jobs = {name: each for name, each in self._jobs.items() if now - each.asked_at < FORGOTTEN_SECONDS}
                job = self._jobs[handle.name] = FollowedJob.of(self._connection, handle, JobFolder(str(handle.url)))
            job.asked_at = now
            return job


def _whereabouts(pods: Sequence[Json]) -> str:
    """Which pods, and on which nodes: whom to look at."""
    named = [f"pod {pod['metadata']['name']} on {pod['spec'].get('nodeName', 'no node')}" for pod in pods[:SHOWN]]
    return ", ".join(named) + (f" and {len(pods) - SHOWN} more" if len(pods) > SHOWN else "")
