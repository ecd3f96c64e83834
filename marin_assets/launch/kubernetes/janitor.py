"""What nobody follows any more, and what the controllers got stuck on (spec/kubernetes.md §1.7). Touches only what this profile made."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from marin_assets.launch.kubernetes.client import (
    COMPUTE_DOMAINS,
    JOBSETS,
    PODS,
    WORKLOADS,
    Cluster,
    ConflictError,
    Json,
    Kind,
    NotFoundError,
)
from marin_assets.launch.kubernetes.names import JOBSET_NAME_LABEL, MANAGED_LABEL
from marin_assets.launch.kubernetes.objects import changed_at, condition, is_true, moment
from marin_assets.launch.kubernetes.profile import Profile
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import JobFolder
from marin_core.artifact.store import Store
from marin_core.errors import DataError, MarinError

SWEEP_SECONDS = 600
"""Between two sweeps, and how long something must have been so before it is touched: whoever follows a job is quicker."""

TERMINATING_SECONDS = 300
"""Beyond its grace, after which a pod that doesn't end is told of: it holds what the head of the queue waits for (kueue #6143)."""


@dataclass(frozen=True)
class Finding:
    """What a sweep found, and did about it.

    Attributes:
        done: `told` = nothing but this: a person must look.
    """

    name: str
    done: Literal["deleted", "told"]
    message: str


@dataclass(frozen=True)
class Janitor:
    """Looks after one profile's jobs.

    Attributes:
        clock: seconds since 1970.
    """

    cluster: Cluster
    profile: Profile
    clock: Callable[[], float] = time.time

    def sweep(self) -> list[Finding]:
        """One round. Safe to repeat, and at the same time as another's.

        Raises:
            ApiError, RefusedError: the cluster doesn't answer, or refuses.
        """
        domains = self._list(COMPUTE_DOMAINS) if any(pool.imex == "per_jobset" for pool in self.profile.pools) else []
        jobsets = self._list(JOBSETS)  # after the domains, so that the owner of a new one is among them
        pods = self._list(PODS)
        found = [finding for jobset in jobsets if (finding := self._committed(jobset))]
        gone = {finding.name for finding in found}
        found += [finding for finding in self._without_pods(jobsets, pods) if finding.name not in gone]
        found += self._terminating(pods)
        return found + self._without_owner(domains, jobsets)

    def _list(self, kind: Kind) -> list[Json]:
        items: list[Json] = self.cluster.list(kind.path(self.profile.namespace), f"{MANAGED_LABEL}={self.profile.name}")["items"]
        return items

    def _committed(self, jobset: Json) -> Finding | None:
        """Delete the JobSet of an artifact that is committed: it has nothing left to do, whatever its pods think."""
        name = jobset["metadata"]["name"]
        try:
            text = JobFolder(_folder(jobset)).spec()
            spec = None if text is None else JobSpec.from_json(json.loads(text))
            record = None if spec is None else Store(spec.output_prefix or spec.prefix).record(spec.id)
        except (MarinError, ValueError) as error:  # one job's store that is away, or damaged, doesn't keep the others from being swept
            return Finding(name, "told", f"its record can't be read: {error}") if isinstance(error, DataError | ValueError) else None
        if record is None or not self._is_past(moment(record.ended_at), SWEEP_SECONDS):
            return None
        return self._deleted(JOBSETS, jobset, f"{record.id} is committed")

    def _without_pods(self, jobsets: list[Json], pods: list[Json]) -> Iterator[Finding]:
        """Jobs that hold their quota and have no pods (kueue #14811). Whoever follows such a job finds it vanished, and starts anew."""
        if not self.profile.kueue:
            return
        with_pods = {pod["metadata"]["labels"].get(JOBSET_NAME_LABEL) for pod in pods}
        workloads = self.cluster.list(WORKLOADS.path(self.profile.namespace))["items"]
        by_owner = {owner["uid"]: each for each in workloads for owner in each["metadata"].get("ownerReferences", ())}
        for jobset in jobsets:
            workload = by_owner.get(jobset["metadata"]["uid"])
            if jobset["metadata"]["name"] in with_pods or not (is_true(workload, "Admitted") and is_true(workload, "Evicted")):
                continue
            if self._is_past(changed_at(condition(workload, "Evicted")), SWEEP_SECONDS):
                yield self._deleted(JOBSETS, jobset, "it was evicted, has no pods, and still holds its quota")

    def _terminating(self, pods: list[Json]) -> Iterator[Finding]:
        """Pods that don't end. None is forced: its process may still run on a node that nobody reaches."""
        for pod in pods:
            until = moment(pod["metadata"].get("deletionTimestamp"))  # when its grace ends
            if until is not None and self._is_past(until, TERMINATING_SECONDS):
                name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "no node")
                due = datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")
                yield Finding(name, "told", f"it should have ended at {due}, and holds what others wait for; look at {node}")

    def _without_owner(self, domains: list[Json], jobsets: list[Json]) -> list[Finding]:
        """ComputeDomains whose JobSet is gone."""
        uids = {jobset["metadata"]["uid"] for jobset in jobsets}
        return [
            self._deleted(COMPUTE_DOMAINS, domain, "its JobSet is gone")
            for domain in domains
            if not uids & {owner["uid"] for owner in domain["metadata"].get("ownerReferences", ())}
            and self._is_past(moment(domain["metadata"]["creationTimestamp"]), SWEEP_SECONDS)
        ]

    def _deleted(self, kind: Kind, thing: Json, why: str) -> Finding:
        name = thing["metadata"]["name"]
        with suppress(NotFoundError, ConflictError):  # it is gone, or another one by now
            self.cluster.delete(kind.path(self.profile.namespace, name), thing["metadata"]["uid"])
        return Finding(name, "deleted", why)

    def _is_past(self, since: float | None, seconds: float) -> bool:
        return since is not None and self.clock() - since > seconds


def _folder(jobset: Json) -> str:
    """URL of a job's folder: its pods are told it."""
    container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    return next(str(each["value"]) for each in container["env"] if each["name"] == "MARIN_JOB_FOLDER")
