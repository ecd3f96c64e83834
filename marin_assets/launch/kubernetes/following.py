"""Following one job: from its way into the cluster to its end, by what the cluster, the store and the job's own pods say of it."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import RLock

from marin_assets.launch.contract import Handle, Observation, Standing, State
from marin_assets.launch.kubernetes.client import JOBSETS, Cluster, ConflictError, Json, NotFoundError
from marin_assets.launch.kubernetes.manifest import Manifest
from marin_assets.launch.kubernetes.mirror import Mirror
from marin_assets.launch.kubernetes.objects import evictions
from marin_assets.launch.kubernetes.pending import NOT_ASKED
from marin_assets.launch.kubernetes.profile import Profile
from marin_assets.launch.kubernetes.queue import QueueOrder
from marin_assets.launch.kubernetes.reduce import Facts, Phase, Reduced, reduce
from marin_assets.launch.kubernetes.submission import Submission
from marin_assets.launch.kubernetes.view import BUSY_SECONDS, IDLE_SECONDS, STEADY_SECONDS, Objects, View, Watcher
from marin_assets.launch.kubernetes.watchdog import Watchdog, rounds
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import JobFolder, Outcome
from marin_core.artifact.store import Store
from marin_core.errors import ConfigError, DataError, ExitCode, InfrastructureError

CONFIRM_SECONDS = 1.0
"""Between two reads that must both find nothing before a job counts as gone."""

LAST_WORDS_SECONDS = 30.0
"""For the pods of a committed job to ship their last lines, and end."""

OUTCOMES_SECONDS = 90.0
"""After a restart in which pods may still leave word of how they ended; a pod sleeps for up to a minute before it exits with 75."""

SUBMITTING = "submitting"
"""Phase of a job that the cluster doesn't have yet."""

STATES = {Phase.RUNNING: State.RUNNING, Phase.SUCCEEDED: State.SUCCEEDED, Phase.FAILED: State.FAILED, Phase.VANISHED: State.VANISHED}
"""The others are PENDING: whoever follows the job gives its signs of life."""

PASSING = frozenset({SUBMITTING, Phase.STARTING, Phase.RESTARTING, Phase.PREEMPTED, Phase.STOPPING})
"""Phases that don't last; for so long, that is:"""
PASSING_SECONDS = 600.0

SETTLED_SECONDS = 30.0
"""In a phase after which nothing is about to change."""

PATIENT_SECONDS = 3600.0
"""In the queue after which a look a minute is enough."""

RESTARTED = frozenset({Phase.STARTING, Phase.RESTARTING, Phase.RUNNING})
"""Phases in which the cluster may just have restarted a job that it shouldn't."""


@dataclass(frozen=True)
class Connection:
    """One cluster, as all the jobs share it that a process follows there.

    Attributes:
        queue: None where there is no Kueue.
        watcher: None = looks alone.
        clock: seconds that only go forwards.
        wall: seconds since 1970.
    """

    profile: Profile
    cluster: Cluster
    view: View
    queue: QueueOrder | None
    watcher: Watcher | None
    clock: Callable[[], float]
    wall: Callable[[], float]

    @classmethod
    def open(
        cls,
        profile: Profile,
        cluster: Cluster | None = None,
        *,
        watch: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> "Connection":
        """A connection that makes no request before it is asked something.

        Args:
            cluster: None = the one that the profile names.
            watch: whether a thread looks out for changes between two looks.
        """
        cluster = cluster or Cluster.of_context(profile.context)
        view = View(cluster, profile.namespace, profile.name, kueue=profile.kueue, clock=clock, wall=wall)
        queue = QueueOrder(cluster, profile, clock) if profile.kueue else None
        watcher = Watcher(cluster, profile.namespace, view) if watch else None
        return cls(profile, cluster, view, queue, watcher, clock, wall)


@dataclass
class FollowedJob:
    """What a process knows of one job. None of it is needed to begin anew, in another process or on another machine.

    Attributes:
        seen: the newest observation; a final one stays.
        submission: its way into the cluster, while it isn't there.
        number: of the look at the cluster from which `seen` comes.
        is_known: whether the cluster has, or had, it.
        missed_at: when it was not found for the first time.
        committed_at: when its record was found for the first time.
        phase_at: when it came into its phase.
        restarts, restarted_at: of the JobSet, and when their number rose. All times are the connection's clock's.
        outcomes: how its pods have ended.
        blamed: process on whose account it ended, or was restarted last.
        is_copied: it had no pods at the last look, and what earlier ones said has been copied.
        spec: None = not read yet.
    """

    connection: Connection
    handle: Handle
    folder: JobFolder
    mirror: Mirror
    asked_at: float
    phase_at: float
    seen: Observation = field(default=Observation(State.PENDING, standing=Standing(SUBMITTING)))
    submission: Submission | None = None
    number: int | None = None
    is_known: bool = False
    missed_at: float | None = None
    committed_at: float | None = None
    restarts: int = 0
    restarted_at: float = 0.0
    outcomes: tuple[Outcome, ...] = ()
    watchdog: Watchdog = field(default_factory=Watchdog)
    blamed: int = 0
    is_copied: bool = False
    spec: JobSpec | None = None
    lock: RLock = field(default_factory=RLock)

    @classmethod
    def of(cls, connection: Connection, handle: Handle, folder: JobFolder) -> "FollowedJob":
        now = connection.clock()
        return cls(connection, handle, folder, Mirror(folder, handle.folder), asked_at=now, phase_at=now)

    def read_spec(self) -> JobSpec | None:
        """The spec in the job's folder; None before anybody has submitted it."""
        if self.spec is None and (text := self.folder.spec()) is not None:
            self.spec = JobSpec.from_json(json.loads(text))
        return self.spec

    def submit(self, manifests: Sequence[Manifest]) -> None:
        """Begin to hand it over to the cluster."""
        self.submission = Submission(self.connection.cluster, self.connection.profile.namespace, manifests, self.connection.clock)
        self._proceed(self.submission)

    def refuse(self, error: ConfigError) -> None:
        """End it: the cluster, or its profile, won't have it."""
        self.submission = None
        self.seen = Observation(State.FAILED, int(ExitCode.BAD_CONFIG), f"{error.message} ({error.advice})", "config")

    def observe(self) -> Observation:
        """One look, without waiting. While nobody answers, what was seen last stands, and says since when."""
        if not self.seen.state.final:
            try:
                self._observe()
            except InfrastructureError as error:  # the store, or the API server: the job may go on all the same
                self._set_stale(self.connection.wall(), error.message)
        if self.seen.state.final:
            self.connection.view.forget(self.handle.name)
        return self.seen

    def _proceed(self, submission: Submission) -> None:
        """One more try to hand it over."""
        try:
            submission.proceed()
        except ConfigError as error:
            self.refuse(error)
            return
        if submission.done:
            self.submission, self.is_known = None, True
            self.connection.view.nudge()
            if self.connection.watcher is not None:
                self.connection.watcher.start()
        self._set(Observation(State.PENDING, reason=submission.waits_for, standing=Standing(SUBMITTING)))
        if submission.silent:
            self._set_stale(self.connection.wall(), submission.waits_for)

    def _observe(self) -> None:
        if self.submission is not None:
            self._proceed(self.submission)
            return
        look = self.connection.view.look(self.handle.name)
        if look.stale_since is not None:
            self._set_stale(look.stale_since, look.silence)
            return
        if look.number is None or look.number == self.number:
            return
        if look.objects.jobset is not None:
            self.missed_at = None
        elif not self._is_gone():
            return
        self.number = look.number
        self._judge(look.objects)

    def _is_gone(self) -> bool:
        """Whether the JobSet that a list doesn't have isn't there, by two reads (spec §1.8). A list that is behind is none to judge by."""
        now = self.connection.clock()
        if self.missed_at is not None and now - self.missed_at < CONFIRM_SECONDS:
            return False
        try:
            self.connection.cluster.get(JOBSETS.path(self.connection.profile.namespace, self.handle.name))
        except NotFoundError:
            confirmed = self.missed_at is not None
            self.missed_at = self.missed_at or now
            return confirmed
        self.missed_at = None
        return False

    # Judging ------------------------------------------------------------------------------------------------------------

    def _judge(self, objects: Objects) -> None:
        """Take in a new look."""
        if objects.pods or objects.jobset is None or not self.is_copied:  # hundreds that wait would list the store's objects for nothing
            self.mirror.pull()
        self.is_copied = not objects.pods
        reduced = reduce(self._facts(objects))
        self.blamed = self.blamed if reduced.process is None else reduced.process
        if reduced.phase == Phase.VANISHED and not self.is_known:  # whoever claimed it may be about to submit it; else its silence tells
            self._set(Observation(State.PENDING, reason="it isn't in the cluster yet", standing=Standing(SUBMITTING)))
            return
        self.is_known = True
        if reduced.phase == Phase.SUCCEEDED and self._still_speaks(objects):
            reduced = replace(reduced, phase=Phase.RUNNING, reason="it is committed, and its pods are about to end")
        elif reduced.phase in RESTARTED and objects.jobset is not None:
            reduced = self._failed_if_in_vain(reduced, objects.jobset, objects.workload)
        if reduced.phase == Phase.FAILED and objects.jobset is not None and not _is_over(objects.jobset):
            self._stop(objects.jobset)
        self._set(_observation(reduced, objects, self._position(objects)))

    def _facts(self, objects: Objects) -> Facts:
        queue = self.connection.queue
        return Facts(
            now=self.connection.wall(),
            jobset=objects.jobset,
            workload=objects.workload,
            jobs=objects.jobs,
            pods=objects.pods,
            outcomes=self._outcomes(objects.jobset),
            committed=self._is_committed(),
            kueue=self.connection.profile.kueue,
            line=NOT_ASKED if queue is None or objects.jobset is None else queue.line(objects.jobset, objects.workload),
        )

    def _outcomes(self, jobset: Json | None) -> tuple[Outcome, ...]:
        """How pods have ended; read while some may just have. A running job has none that are new."""
        if jobset is None:
            return self.outcomes
        status, now = jobset.get("status", {}), self.connection.clock()
        restarts = int(status.get("restarts", 0))
        if restarts != self.restarts:
            self.restarts, self.restarted_at = restarts, now
        fresh = restarts > 0 and now - self.restarted_at < OUTCOMES_SECONDS
        if fresh or _is_over(jobset):
            with suppress(DataError):  # one that is damaged: the pods' exit codes say the same
                self.outcomes = tuple(self.folder.outcomes())
        return self.outcomes

    def _is_committed(self) -> bool:
        spec = self.read_spec()
        return spec is not None and Store(spec.output_prefix or spec.prefix).record(spec.id) is not None

    def _still_speaks(self, objects: Objects) -> bool:
        """Whether a committed job's pods may have last words to ship."""
        now = self.connection.clock()
        self.committed_at = self.committed_at or now
        return objects.jobset is not None and not _is_over(objects.jobset) and now - self.committed_at < LAST_WORDS_SECONDS

    def _failed_if_in_vain(self, reduced: Reduced, jobset: Json, workload: Json | None) -> Reduced:
        """How a job stands that the cluster has restarted: it has failed if that can't help."""
        ended = rounds(self.outcomes, self.restarts, reduced.pods_total)
        most = int(jobset["spec"].get("failurePolicy", {}).get("maxRestarts", 0))
        # With Kubernetes 1.36.3 an eviction by Kueue costs a restart, when the job comes back; that is not the job's doing.
        uncounted = max(0, reduced.infrastructure_restarts - evictions(workload))
        objection = self.watchdog.objection(ended, uncounted, most, self.mirror.first_done)
        if objection is None:
            return reduced
        failure, code, why = objection
        return replace(reduced, phase=Phase.FAILED, failure=failure, exit_code=code, reason=why)

    def _stop(self, jobset: Json) -> None:
        """Begin to delete a failed job that the cluster would go on with."""
        with suppress(NotFoundError, ConflictError):  # it has gone by itself
            path = JOBSETS.path(self.connection.profile.namespace, self.handle.name)
            self.connection.cluster.delete(path, jobset["metadata"]["uid"])

    def _position(self, objects: Objects) -> int | None:
        queue = self.connection.queue
        if queue is None or objects.jobset is None or objects.workload is None:
            return None
        return queue.line(objects.jobset, objects.workload).position

    # What was seen ------------------------------------------------------------------------------------------------------

    def _set(self, seen: Observation) -> None:
        """Keep an observation, and look again as soon as it calls for that."""
        phase = _phase(seen)
        if phase != _phase(self.seen):
            self.phase_at = self.connection.clock()
        self.seen = seen
        age = self.connection.clock() - self.phase_at
        passing = age < SETTLED_SECONDS or (phase in PASSING and age < PASSING_SECONDS)
        waits_long = phase not in PASSING and seen.state == State.PENDING and age > PATIENT_SECONDS
        self.connection.view.pace(self.handle.name, BUSY_SECONDS if passing else IDLE_SECONDS if waits_long else STEADY_SECONDS)

    def _set_stale(self, since: float, why: str) -> None:
        standing = self.seen.standing or Standing("unknown")
        self.seen = replace(self.seen, reason=why, standing=replace(standing, stale_since=standing.stale_since or since))


def _is_over(jobset: Json) -> bool:
    return jobset.get("status", {}).get("terminalState") is not None


def _phase(seen: Observation) -> str:
    return "" if seen.standing is None else seen.standing.phase


def _observation(reduced: Reduced, objects: Objects, position: int | None) -> Observation:
    state = STATES.get(reduced.phase, State.PENDING)
    standing = Standing(
        phase=str(reduced.phase),
        position=position if reduced.phase == Phase.QUEUED else None,
        pods_ready=reduced.pods_ready,
        pods_total=reduced.pods_total,
        application_restarts=reduced.application_restarts,
        infrastructure_restarts=reduced.infrastructure_restarts,
        since=reduced.since,
    )
    return Observation(
        state, reduced.exit_code if state.final else None, reduced.reason, reduced.failure if state.final else None, standing
    )
