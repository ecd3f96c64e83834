"""What a job is called in the cluster, and which process of its gang a pod is. Pure."""

import re
from dataclasses import dataclass

from marin_core.errors import ConfigError

LONGEST = 63
"""Characters of a DNS label, and of the value of a label."""

LABEL = "marin-assets"
KEY_LABEL = f"{LABEL}/key"
ATTEMPT_LABEL = f"{LABEL}/attempt"
MANAGED_LABEL = f"{LABEL}/managed"
"""Names the cluster's profile: what carries another one, or none, was not launched with it and is left alone."""

ADDRESS_ANNOTATION = f"{LABEL}/address"
SPEC_ANNOTATION = f"{LABEL}/spec-sha256"
RUN_ANNOTATION = f"{LABEL}/dagster-run"
IMAGE_ANNOTATION = f"{LABEL}/image"

JOB_INDEX = "jobset.sigs.k8s.io/job-global-index"
POD_INDEX = "batch.kubernetes.io/job-completion-index"
RESTART = "jobset.sigs.k8s.io/restart-attempt"
"""Labels of a pod that its controllers set: its Job of the JobSet, its place in that Job, and how often the JobSet was made anew."""

JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""Of Jobs and pods."""
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
"""Of Kueue's Workload: the uid of the object that it queues."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"

_JOB = re.compile(r"m-(?:[a-z0-9]+-)+(?P<key>[a-z2-7]{10})-a(?P<attempt>[1-9][0-9]*)")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_POD_SUFFIX = len("-abcde")


@dataclass(frozen=True)
class JobName:
    """A name that `contract.job_name` made: `m-{slug}-{key}-a{attempt}`.

    Attributes:
        key: hash of the artifact's address.
        attempt: number of the try.
    """

    text: str
    key: str
    attempt: int

    @classmethod
    def parse(cls, text: str) -> "JobName":
        """Read a job's name.

        Raises:
            ConfigError: it is none of ours.
        """
        found = _JOB.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text!r} is no job's name", advice="Names have the form m-{slug}-{key}-a{attempt}.")
        return cls(text, found["key"], int(found["attempt"]))


def require_legal(jobset: str, replicated_job: str, replicas: int, completions: int) -> None:
    """Refuse a name of which JobSet's webhook would say that its pods' names are too long or no DNS-1035 labels (spec §1.2).

    Raises:
        ConfigError: says which name, and what would do.
    """
    longest = longest_pod_name(jobset, replicated_job, replicas, completions)
    if not _DNS_1035.fullmatch(jobset) or not _DNS_1035.fullmatch(replicated_job):
        raise ConfigError(
            f"JobSet {jobset!r} with jobs {replicated_job!r}: not a DNS-1035 label",
            advice="Begin with a letter, end with a letter or digit, and use a-z, 0-9 and '-' between them.",
        )
    if longest > LONGEST:
        raise ConfigError(
            f"JobSet {jobset!r} has {len(jobset)} characters; with {replicas} jobs {replicated_job!r} of {completions} pods "
            f"its pods' names would have {longest}, and {LONGEST} are allowed",
            advice=f"Use a name of at most {len(jobset) - longest + LONGEST} characters.",
        )


def longest_pod_name(jobset: str, replicated_job: str, replicas: int, completions: int) -> int:
    """Characters of the longest name among a JobSet's pods: `{jobset}-{replicated job}-{job}-{pod}-{5 random ones}`."""
    return len(f"{jobset}-{replicated_job}-{replicas - 1}-{completions - 1}") + _POD_SUFFIX


def coordinator(jobset: str, replicated_job: str, port: int) -> str:
    """`host:port` of process 0, in the headless service that is named like the JobSet (spec §2.5)."""
    return f"{jobset}-{replicated_job}-0-0.{jobset}:{port}"


def process_of(job_index: int, pod_index: int, pods_per_job: int) -> int:
    """Process of the gang that a pod runs; contiguous within each job, that is within each rack or slice (spec §2.5).

    JAX numbers devices by process, and the mesh's inner axis, `expert`, takes them in that order: it stays within a rack.
    """
    return job_index * pods_per_job + pod_index
