"""Bringing one artifact to a committed record: serve it, attach to whoever builds it, or build it. Knows nothing of Dagster."""

import json
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from marin_assets.launch import Handle, Launcher, Observation, State
from marin_assets.launch.contract import job_name
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Attempt, Claim, End, Record, Store
from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.job import RESUMED_JOBS, JobSpec
from marin_core.artifact.lease import LeaseWatch, WaitingBeats
from marin_core.artifact.record import FailureClass, failure_class
from marin_core.artifact.store import committed_at
from marin_core.errors import ConfigError, ExitCode, InfrastructureError, MarinError
from marin_core.redaction import refuse_secrets

POLL_SECONDS = 0.2
POLL_ELSEWHERE_SECONDS = 2.0
"""Between two looks at the store for a build on another machine, which can't be watched directly."""
DAY_SECONDS = 86_400.0
MISSING_SHOWN = 20
"""Missing inputs that an error names."""

ADVICE: Mapping[FailureClass, str] = {
    "config": "Correct the configuration where the experiment sets it, and materialize again.",
    "data": "Repair or exclude the data that the message names, and materialize again.",
    "bug": "Look at the log's last lines; this is a defect of the job's code.",
    "infrastructure": "Look at the log and at the machine; materializing again goes on from what is durable.",
    "preempted": "Materialize again when there is capacity; it goes on from what is durable.",
}
"""What to do about a failed job, by class."""


@dataclass(frozen=True)
class Retries:
    """How often a day a build is tried again, by the class of its failure; what people must repair is never tried again.

    Attributes:
        infrastructure: tries after lost processes, disks, networks within `DAY_SECONDS`: a training of months loses many nodes.
        preempted: resumptions after preemptions, which are the normal life of cheap capacity.
        first_delay_seconds: before the second try; doubled before each further one.
        longest_delay_seconds: bound of the doubling.
    """

    infrastructure: int = 20
    preempted: int = 100
    first_delay_seconds: float = 1.0
    longest_delay_seconds: float = 60.0

    def budget(self, failure: FailureClass) -> int:
        return {"infrastructure": self.infrastructure, "preempted": self.preempted}.get(failure, 0)

    def delay_seconds(self, failures: int) -> float:
        """Before trying again after so many failures of one class; random, so that a thousand jobs don't come back at once."""
        return min(self.first_delay_seconds * 2.0 ** min(failures - 1, 30), self.longest_delay_seconds) * random.uniform(0.5, 1.0)  # noqa: S311


class BuildEvents(Protocol):
    """What a build tells whoever asked for it."""

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...

    def following(self, handle: Handle) -> AbstractContextManager["Following"]:
        """Called around the time in which a job is followed."""

    def stop_means_job(self) -> bool:
        """Whether an interrupt of this process is meant for the job too; else it goes on, and the next one attaches."""


class Following(Protocol):
    """One job being followed."""

    environment: Mapping[str, str]
    """Variables that the job's process needs to report here."""

    def pump(self) -> None:
        """Hand on whatever the job has said since the last call."""

    def see(self, seen: Observation) -> None:
        """Show how the job stands; called at every look."""


_EXIT_CODES: dict[FailureClass, ExitCode] = {
    "config": ExitCode.BAD_CONFIG,
    "data": ExitCode.BAD_DATA,
    "bug": ExitCode.BUG,
    "infrastructure": ExitCode.TRY_AGAIN,
    "preempted": ExitCode.PREEMPTED,
}


class BuildError(MarinError):
    """A job ended without a commit and won't be tried again."""

    def __init__(
        self, message: str, *, advice: str, attempt: int, failure: FailureClass, exit_code: int | None, log: str, log_tail: str
    ) -> None:
        super().__init__(message, advice=advice)
        self.attempt = attempt
        self.job_exit_code = exit_code
        self.log = log
        self.log_tail = log_tail
        self.exit_code = _EXIT_CODES[failure]  # a process that was killed has none


type Failures = defaultdict[FailureClass, list[float]]
"""When a build failed, by the failure's class, on a clock that only goes forwards."""


@dataclass(frozen=True)
class Builder:
    """Builds artifacts of one graph.

    Attributes:
        store: where inputs lie.
        target: where artifacts are built; the same store, but for reproductions.
        lease_seconds: silence after which a builder that can't be seen is given up.
    """

    graph: ArtifactGraph
    store: Store
    target: Store
    launcher: Launcher
    events: BuildEvents
    retries: Retries = Retries()
    lease_seconds: float = 60.0
    dagster_run_id: str | None = None

    def build(self, step: ArtifactStep, artifact: ArtifactId) -> tuple[Record, bool]:
        """The committed record, and whether it was there before.

        A store or launcher that fails meanwhile is tried again like a job that does, from the same budget.

        Raises:
            BuildError: the job ended in a way that isn't tried again, or too often.
            ConfigError: an input is missing, or the configuration holds a secret.
            DataError: the committed artifact is corrupt.
            InfrastructureError: the store or the launcher failed too often.
        """
        record = self.target.record(artifact)
        if record is not None:
            self.target.require_intact(record)
            return record, True
        self.target.ensure_writable()
        if step.pin is not None:
            return self._pin(artifact, step.pin if artifact.partition is None else f"{step.pin}/{artifact.partition}"), False
        inputs = self._inputs(step, artifact)
        identity = canonical_json(self.graph.identity(step)).decode() + step.config(self.store.prefix, artifact.partition).model_dump_json()
        refuse_secrets(identity, f"the configuration of {artifact}")
        failures: Failures = defaultdict(list)
        claims: set[str] = set()
        while True:
            try:
                attempt, mine = self._claim_or_attach(artifact, [str(read) for read in inputs], claims)
                end = self._follow(step, artifact, attempt, inputs, mine=mine)
                record = self.target.settle(artifact)
            except InfrastructureError as error:
                if not self._try_again(failures, "infrastructure", f"{artifact}: {error.message}"):
                    raise
                continue
            if record is not None:
                return record, False
            failure = end.failure or "infrastructure"
            reason = (end.error or end.state).splitlines()[0]
            if not self._try_again(failures, failure, f"attempt {attempt.number} of {artifact} ended ({failure}): {reason}"):
                raise self._failed(artifact, attempt, end)

    def _try_again(self, failures: Failures, failure: FailureClass, what: str) -> bool:
        """Count a failure and wait before the next try; False if the day's budget of its class is spent."""
        now = time.monotonic()
        failures[failure] = [each for each in failures[failure] if now - each < DAY_SECONDS] + [now]
        count = len(failures[failure])
        if count > self.retries.budget(failure):
            return False
        delay = self.retries.delay_seconds(count)
        self.events.warning(f"{what}; trying again in {delay:.1f} s")
        time.sleep(delay)
        return True

    def _pin(self, artifact: ArtifactId, address: str) -> Record:
        """Commit a record that points at what is committed elsewhere; nothing is copied.

        Raises:
            ConfigError: nothing is committed there.
            DataError: what is there is corrupt.
        """
        record, code = committed_at(address)
        own = {"name": artifact.name, "version": artifact.version, "partition": artifact.partition}
        record = record.model_copy(update={**own, "keep_days": self.graph[artifact].keep_days})
        self.target.require_intact(record)
        claims: set[str] = set()
        while True:
            attempt, mine = self._claim_or_attach(artifact, [address], claims)
            if not mine and attempt.end is None:
                self._wait_elsewhere(artifact, attempt)
            elif mine:
                committed_at(address)  # housekeeping spares what a claim reads, but may have taken it back just before
                now = datetime.now(UTC).isoformat()
                record = record.model_copy(update={"attempt": attempt.number, "dagster_run_id": self.dagster_run_id})
                self.target.commit(artifact, End(state="succeeded", ended_at=now, exit_code=0, record=record), code)
            committed = self.target.settle(artifact)
            if committed is not None:
                return committed

    def _inputs(self, step: ArtifactStep, artifact: ArtifactId) -> dict[ArtifactId, Record]:
        """Records of everything that this build reads.

        Raises:
            ConfigError: naming the missing inputs and why their last attempts failed.
        """
        wanted = [each for dep in step.deps for each in step.reads(dep, artifact.partition)]
        found = self.store.records(wanted)
        lacking = [each for each in wanted if found[each] is None and not step.is_optional(each)]
        if lacking:
            attempted = self.store.attempted(lacking)
            shown = sorted(lacking, key=lambda each: each not in attempted)[:MISSING_SHOWN]  # a reason says more than an absence
            named = "; ".join(self._why_missing(each) for each in shown)
            more = f"; and {len(lacking) - len(shown)} more" if len(lacking) > len(shown) else ""
            raise ConfigError(
                f"{artifact} needs {len(lacking)} artifacts that are not built: {named}{more}",
                advice="Materialize them first; for a family, backfill its missing partitions.",
            )
        return {each: record for each, record in found.items() if record is not None}

    def _why_missing(self, artifact: ArtifactId) -> str:
        attempts = self.store.attempts(artifact)
        return f"{artifact}" + (f" (attempt {attempts[-1].number}: {attempts[-1].error or attempts[-1].state})" if attempts else "")

    def _claim_or_attach(self, artifact: ArtifactId, reads: Sequence[str], claims: set[str]) -> tuple[Attempt, bool]:
        """The open attempt, whoever started it, or a new one; and whether it is ours.

        Args:
            claims: tokens of our claims so far, grows; one whose writing failed may be found written after all.
        """
        while True:
            attempts = self.target.attempts(artifact)
            newest = attempts[-1] if attempts else None
            if newest is not None and (newest.end is None or self._unpublished(artifact, newest)):
                return newest, newest.claim.token in claims
            number = newest.number + 1 if newest else 1
            now = datetime.now(UTC).isoformat()
            claim = Claim(
                number=number,
                job=job_name(artifact, self.target.address(artifact), number, now),
                fingerprint=self.graph.fingerprint(self.graph[artifact]),
                submitted_at=now,
                host=self.launcher.host,
                dagster_run_id=self.dagster_run_id,
                reads=tuple(reads),
            )
            claims.add(claim.token)
            if self.target.claim(artifact, claim):
                return Attempt(claim=claim), True

    def _unpublished(self, artifact: ArtifactId, attempt: Attempt) -> bool:
        """Whether an attempt succeeded but its builder died before it could publish the record."""
        return attempt.end is not None and attempt.end.record is not None and self.target.settle(artifact) is not None

    def _follow(
        self, step: ArtifactStep, artifact: ArtifactId, attempt: Attempt, inputs: Mapping[ArtifactId, Record], *, mine: bool
    ) -> End:
        """Start the attempt's job or attach to it, and wait for its end; whatever becomes of it, the attempt is closed then."""
        if attempt.end is not None:
            return attempt.end
        if attempt.claim.host != self.launcher.host:
            return self._wait_elsewhere(artifact, attempt)
        handle = self.launcher.handle(attempt.claim.job)
        watch = LeaseWatch(self.target, artifact, attempt.number, self.lease_seconds)
        # A job that another has begun to submit may be ours to start, but only one that would be what its claim says.
        submits = mine or (self.launcher.adopts and attempt.claim.fingerprint == self.graph.fingerprint(step))
        waiting = WaitingBeats(self.target, artifact, attempt.number, self.lease_seconds)
        with self.events.following(handle) as following:
            try:
                if submits:
                    spec = self._spec(step, artifact, attempt, inputs, handle)
                    self.launcher.submit(attempt.claim.job, spec, following.environment, step.resources)
                while not (seen := self.launcher.observe(handle)).state.final:
                    following.pump()
                    following.see(seen)
                    if submits and seen.is_mute:
                        waiting.beat()
                    if watch.expired():
                        self.launcher.cancel(handle)
                        seen = Observation(State.VANISHED, reason=f"no sign of life for {self.lease_seconds:.0f} s: it hung and was ended")
                        break
                    time.sleep(POLL_SECONDS)
            except BaseException as error:
                self._leave(artifact, attempt, handle, error, mine=mine)
                raise
            finally:
                following.pump()
        return self._close(artifact, attempt, seen, handle)

    def _leave(self, artifact: ArtifactId, attempt: Attempt, handle: Handle, error: BaseException, *, mine: bool) -> None:
        """A builder that is interrupted or fails leaves its job running, unless the interrupt is meant for it or it ran in this process."""
        failed = isinstance(error, Exception)
        if self.launcher.adopts:
            if failed or not self.events.stop_means_job():
                return
            self.events.info(f"stopping job {attempt.claim.job}")
            self.launcher.cancel(handle)
        elif not mine:
            return
        seen = self.launcher.observe(handle)
        if not seen.state.final:
            stopped = Observation(State.PREEMPTED, int(ExitCode.PREEMPTED), "stopped with whoever had started it")
            seen = Observation(State.FAILED, int(ExitCode.TRY_AGAIN), str(error)) if failed else stopped
        with suppress(InfrastructureError):  # whoever comes next closes it then
            self._close(artifact, attempt, seen, handle)

    def _wait_elsewhere(self, artifact: ArtifactId, attempt: Attempt) -> End:
        """Wait for a build on another machine: for its end, or for the end of its signs of life."""
        self.events.info(f"{artifact} is being built on {attempt.claim.host}, attempt {attempt.number}; waiting for it")
        watch = LeaseWatch(self.target, artifact, attempt.number, self.lease_seconds)
        while True:
            end = self.target.end(artifact, attempt.number)
            if end is not None:
                return end
            if watch.expired():
                reason = f"no sign of life from {attempt.claim.host} for {self.lease_seconds:.0f} s"
                return self.target.close(artifact, attempt.number, _end("lost", Observation(State.VANISHED, reason=reason), None))
            time.sleep(min(POLL_ELSEWHERE_SECONDS, self.lease_seconds / 10))

    def _close(self, artifact: ArtifactId, attempt: Attempt, seen: Observation, handle: Handle) -> End:
        """What became of an attempt; closed here if its job could not do so itself."""
        end = self.target.end(artifact, attempt.number)
        shutil.rmtree(handle.folder / "inputs", ignore_errors=True)  # a killed job's copies of what lies in a remote store
        if (end is not None and end.state == "succeeded") or _job_of(handle) not in RESUMED_JOBS:
            shutil.rmtree(handle.folder / "output", ignore_errors=True)
        if end is not None:
            return end
        state = "lost" if seen.state == State.VANISHED else "failed"
        if seen.state == State.SUCCEEDED:
            seen = Observation(State.FAILED, int(ExitCode.BUG), "the job ended without a record, which is a bug in it")
        return self.target.close(artifact, attempt.number, _end(state, seen, handle.log))

    def _spec(
        self, step: ArtifactStep, artifact: ArtifactId, attempt: Attempt, inputs: Mapping[ArtifactId, Record], handle: Handle
    ) -> JobSpec:
        return JobSpec(
            name=artifact.name,
            version=artifact.version,
            partition=artifact.partition,
            job=step.job,
            prefix=self.store.prefix,
            output_prefix=None if self.target is self.store else self.target.prefix,
            config=step.config(self.store.prefix, artifact.partition).model_dump(mode="json"),
            fingerprint=attempt.claim.fingerprint,
            identity=self.graph.identity(step),
            inputs=tuple(record.as_input() for record in inputs.values()),
            attempt=attempt.number,
            scratch=str(handle.folder),
            lease_seconds=self.lease_seconds,
            dagster_run_id=attempt.claim.dagster_run_id,
            keep_days=step.keep_days,
            base=None if step.base is None else step.base.version,
            processes=step.resources.processes,
            devices_per_process=step.resources.devices_per_process,
        )

    def _failed(self, artifact: ArtifactId, attempt: Attempt, end: End) -> BuildError:
        handle = self.launcher.handle(attempt.claim.job)
        failure = end.failure or "infrastructure"
        return BuildError(
            f"{artifact}, attempt {attempt.number}: {end.error or end.state}",
            advice=ADVICE[failure],
            attempt=attempt.number,
            failure=failure,
            exit_code=end.exit_code,
            log=end.log or handle.log,
            log_tail=self.launcher.logs(handle, tail_lines=40),
        )


def _job_of(handle: Handle) -> str | None:
    """Which job a folder belongs to; None where it holds no spec."""
    try:
        return str(json.loads((handle.folder / "spec.json").read_text())["job"])
    except (OSError, ValueError, KeyError):
        return None


def _end(state: Any, seen: Observation, log: str | None) -> End:
    return End(
        state=state,
        ended_at=datetime.now(UTC).isoformat(),
        failure=seen.failure or (failure_class(seen.exit_code) if seen.state != State.PREEMPTED else "preempted"),
        exit_code=seen.exit_code,
        error=seen.reason,
        log=log,
    )


class QuietEvents:
    """`BuildEvents` of a build that nobody watches."""

    environment: Mapping[str, str] = {}

    def info(self, message: str) -> None: ...

    def warning(self, message: str) -> None: ...

    @contextmanager
    def following(self, handle: Handle) -> Iterator[Following]:
        yield self

    def pump(self) -> None: ...

    def see(self, seen: Observation) -> None: ...

    def stop_means_job(self) -> bool:
        return True
