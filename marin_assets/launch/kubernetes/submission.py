"""A job on its way into the cluster (spec/kubernetes.md §1.3). An API server that is away is waited for: no job is lost over it."""

import time
from collections.abc import Callable, Sequence

from marin_assets.launch.kubernetes.client import (
    COMPUTE_DOMAINS,
    JOBSETS,
    AlreadyThereError,
    ApiError,
    Cluster,
    Json,
    NotFoundError,
)
from marin_assets.launch.kubernetes.manifest import Manifest, owned
from marin_assets.launch.kubernetes.names import SPEC_ANNOTATION
from marin_assets.launch.kubernetes.view import BackOff
from marin_core.errors import ConfigError

DELETION_SECONDS = 1.0
"""Between two tries while an older object of the same name is being deleted."""


class Submission:
    """Creates a JobSet and what it owns, or finds that somebody has. Each step may be repeated, so it doesn't matter who died after which.

    Attributes:
        manifests: the JobSet and what it owns.
        waits_for: why the cluster hasn't got it yet; "" before the first try and once it has.
        silent: whether that is because the API server doesn't answer.
        done: whether the cluster has it.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, manifests: Sequence[Manifest], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._clock = clock
        self._back_off = BackOff()
        self._due = 0.0
        self.manifests = manifests
        self.waits_for = ""
        self.silent = False
        self.done = False

    def proceed(self) -> None:
        """One try, if it is time.

        Raises:
            ConfigError: the cluster refuses it, or has another job of this name. Nothing that isn't ours is ever deleted.
        """
        if self.done or self._clock() < self._due:
            return
        self.silent = False
        try:
            jobset = self._create() or self._adopt()
            if jobset is not None:
                self._create_owned(jobset)
                self.done, self.waits_for = True, ""
        except ApiError as error:
            self._due = self._clock() + self._back_off.fail(error.retry_after_seconds)
            self.waits_for, self.silent = error.message, True

    def _create(self) -> Json | None:
        """The JobSet as it was created; None if one of its name is there."""
        try:
            return self._cluster.create(JOBSETS.path(self._namespace), self.manifests[0])
        except AlreadyThereError:
            return None

    def _adopt(self) -> Json | None:
        """The JobSet of this name if it is this job, such as one whose creation was answered to nobody; None while it is being deleted."""
        ours = self.manifests[0]["metadata"]
        try:
            there = self._cluster.get(JOBSETS.path(self._namespace, ours["name"]))
        except NotFoundError:  # deleted since
            self._due = self._clock() + DELETION_SECONDS
            return None
        if "deletionTimestamp" in there["metadata"]:
            self._due = self._clock() + DELETION_SECONDS
            self.waits_for = f"an older JobSet {ours['name']} is still being deleted"
            return None
        digest, other = (each["annotations"].get(SPEC_ANNOTATION) for each in (ours, {"annotations": {}} | there["metadata"]))
        if digest != other:
            raise ConfigError(
                f"JobSet {ours['name']} is there and builds something else: it has the digest {other}, this job {digest}",
                advice="Look whose it is; it isn't touched. A new attempt has a name of its own.",
            )
        return there

    def _create_owned(self, jobset: Json) -> None:
        """What the JobSet owns. It is created suspended, so its pods don't come before."""
        for manifest in self.manifests[1:]:
            with_owner = owned(manifest, jobset)
            try:
                self._cluster.create(COMPUTE_DOMAINS.path(self._namespace), with_owner)
            except AlreadyThereError:
                continue
